"""`train.py --tune`: finds batch size, layout, precision and learning rates for this machine.

setting   what a trial measures, and its result
launch    runs a trial in a subprocess
trial     that subprocess: times one setting with the real training step
search    searches the batch size
options   tries layout, precision and compilation at that batch size
rates     scales the learning rates to the batch size
report    the table of trials
proposal  `tune`: runs the steps above and proposes flags
"""
