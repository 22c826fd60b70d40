"""Studies: many training runs, each in its own process, and the conclusions from them.

results         what a run's log says
arms            runs one arm with one seed; finished runs are not repeated
intervals       means and ratios with 95 % intervals
figures         speed, memory and accuracy of runs, and of pairs of arms
plots, report   a study as JSON, Markdown page and plots
rounds          runs all arms, seed by seed; the options that all studies share
comparison      two results of one machine side by side
optimizations   with speedups
batch_sizes     with batch_grid
ablation        with ladder, claims and ablation_page
"""
