"""The loop that receives, plans, executes, commits and replies, and the faces in front of it: LLM and AsyncLLM."""
