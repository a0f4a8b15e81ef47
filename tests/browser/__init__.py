"""The pages in a real browser: what only one can say of style, script, policy and keyboard."""
