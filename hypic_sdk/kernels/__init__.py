"""Ops on plain tensors.  Each op is a folder: `op` (the door), `reference` (the definition), and
where there is one `kernel` (Triton).

Dimension key, used by every name that ends in capital letters:

L  tokens or rows, packed            N  packed stretches or sequences
D  model width                       R  requests in a batch
Q, G  query, key/value heads of full attention        E  their head size
H  state heads (= value heads)       Hk  key heads, H a multiple of Hk
K, V  key and value size of a state head
J, A  linear layers, full-attention layers
S  rows of the state slab            X  rows of the transition slab        P  KV slots
C, W  conv channels, conv width
"""
