#!/usr/bin/env bash
# One job on several hosts with torchrun's c10d rendezvous. Run the same command on every host:
#
#   HEAD=node0 HOSTS=2 bash examples/multi_node.sh --steps 20
#   HEAD=node0 HOSTS=2 bash examples/multi_node.sh --steps 12 --collect trace/
#   HEAD=node0 HOSTS=2 bash examples/multi_node.sh --steps 20 --schedule schedule.json
#
# HEAD       host name or address of the first host, reachable from all of them
# HOSTS      number of hosts
# PER_HOST   processes (GPUs) a host, by default what torchrun calls "gpu"; set a number without GPUs
# RESTARTS   how often torchrun may start the job again after a failure
# SCRIPT     what to train, by default examples/fsdp2.py
set -euo pipefail

: "${HEAD:?set HEAD to the first host}" "${HOSTS:?set HOSTS to the number of hosts}"

# A store for each attempt: the launchers' own lives through restarts, and a restarted worker finds its peers'
# addresses of before in it (connection refused, then a wait for nobody).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE="${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-1}"

exec torchrun \
    --nnodes "$HOSTS" \
    --nproc-per-node "${PER_HOST:-gpu}" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$HEAD:${PORT:-29400}" \
    --rdzv-id "${JOB:-kareus}" \
    --max-restarts "${RESTARTS:-0}" \
    "${SCRIPT:-examples/fsdp2.py}" "$@"
