"""The recognizer. Reads top to bottom as the model runs.

========== =====================================================================
model      load and check a checkpoint, choose layouts and dtype for the device
features   samples [n] → log-mel [128, T]
encoder    log-mel [128, T] → audio embeddings [N, D]
prompt     token ids around the audio, with exact boundaries
prefill    embeddings [1, L, D] → first token and key/value blocks
step       one decode step over S slots, fixed shapes
decoders   serial and bulk-sync schedules over that step
guards     token budget, repetition loops, echoed context
recognizer segments in, texts out; ties the above together
timing     what it all cost
========== =====================================================================

Arrays and options only: nothing here knows of a job, a file or a folder. Import the modules you need; this package
imports nothing by itself, because loading mlx takes seconds and read commands must not pay for it.
"""
