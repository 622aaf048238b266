"""The recipes of the shipped checkpoints; `make checkpoints` runs them all.

loop        one training loop: a recipe in numbers, resumed as if it had never been stopped
text        what a step reads of a text, and the loss of every window
checkpoints what is shipped
gptlite     the character model of the course
variants    its conversions to a smaller cache
uptrain     one of them, trained on for a twentieth of the original steps
results     what that did to the loss, in pairs with a control
ranks       loss against the rank of latents, before any training
recall      whether a state of fixed size remembers pairs as keys and values do; asked in recall_task
"""
