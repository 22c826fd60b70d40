"""Studies: many training runs, each a process of its own, and what follows from them.

results      what a run gave, read from its diary
arms         runs one arm with one seed; finished ones are not run again
rounds       every arm in turn, then all again; what the commands of the studies share
intervals    means and ratios with their 95 % intervals
figures      speed, memory and accuracy of runs, alone and beside one another
plots, report   a study as a page, JSON and plots
comparison   two results of one machine side by side
optimizations, batch_sizes, ablation   the studies; none knows another
"""
