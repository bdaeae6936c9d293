"""Steps of language models, each a function over a range of work that a team of threads shares out.

No kernel starts threads. The last argument of each is ``span``, int32: the first item, the one
behind the last, and two counts that a kernel may take besides. Counts of tokens, sequences and
pages are not in the code: buffers are declared with room for all, so that one library serves any
batch. Every sum of products is made by explicit fused steps in one order, so that the bits of a
token do not depend on how many others are worked on at the same time.
"""
