#!/usr/bin/env bash
# The same job under Slurm: one torchrun a host, c10d rendezvous on the first.
#
#   sbatch --nodes 8 examples/slurm.sh --steps 12 --collect "$PWD/trace"
#   sbatch --nodes 8 examples/slurm.sh --steps 20 --schedule "$PWD/schedule.json"
#
#SBATCH --job-name=kareus
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --output=%x-%j.log
set -euo pipefail

HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HEAD HOSTS=$SLURM_JOB_NUM_NODES JOB=$SLURM_JOB_ID
export PORT=$((29400 + SLURM_JOB_ID % 1000)) # two jobs on one host must not meet

exec srun --kill-on-bad-exit=1 bash examples/multi_node.sh "$@"
