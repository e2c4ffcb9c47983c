"""The folder watcher: what is ours, when is it whole, what does the job log not know yet.

Events are hints, the scan is the truth. ``eligibility`` and ``settle`` are pure, ``scan`` reads the tree, ``observer``
listens, ``reconcile`` compares and decides; nothing in here imports mlx or opens media.
"""
