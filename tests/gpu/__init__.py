"""The day a GPU is there: what only a GPU can tell, measured by one command (`make gpu`), and the page of it.

    python -m tests.gpu                     every part in turn, then docs/gpu.md
    python -m tests.gpu --part peaks        one part, into its own file; once all are there, the page
    python -m tests.gpu --dry-run           the same code on this machine's CPU, a configuration per part

Reading order: __main__ (which parts, for how long), part (what a part tells, and its file), page (what is
made of the files), device and driver (a GPU, and what stands for it in a dry run), children, configurations;
then the parts: suite, nvml, peaks (one device, then ranks), kernels, pace. Nothing needs a network, and a
part that lacks a package names it.
"""
