"""Published policies for choosing clocks, power limits and launch settings, each a small module of its own.

A policy is a restricted search space or a rule for picking a point of a frontier. All of them run offline
on tables; those that also run in a training loop are plain objects the loop calls.

    pipeline, perseus   clock per forward and backward of a pipeline (Perseus)
    zeus, batch_size    power limit while training, batch size over recurring jobs (Zeus)
    batch_size_file     the same search kept in a file between runs
    chase, series       frontier point by carbon intensity or price, and its forecast (Chase)
    hindsight           what nobody can beat on a recorded series
    twente, twente_switch   SM and memory clock per kernel, switching free or paid (Twente)
    kareus26            budgeted search over clock, SMs and launch point (Kareus '26)
    choose, rules       rules for picking one frontier point, and how users write them
    csv_file, tables    CSV files as spreadsheets write them, and recorded tables of all these kinds
    ground              all of them on one recorded step, for `kareus compare`
"""
