"""The corridor between the text wing and the GPU wing: typed messages, no torch, no HTTP."""
