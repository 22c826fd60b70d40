"""How large the batch, in which arithmetic, at which learning rates: measured here, on this machine.

setting   what is tried, and what came of it
launch    starts a trial in a process of its own, and outlives it
trial     that program: one setting, measured with the real step
search    batch sizes: grows, shrinks, looks in between
options   layout, precision and compilation at the chosen size
cache     what was measured before on such a machine
rates     learning rates for another batch, by rule
noise     gradient-noise scale: how large a batch still pays
report    the table and the plot
proposal  `tune`: all of it, and the flags that it comes to

Nothing is imported here, so that a trial starts without the plots.
"""
