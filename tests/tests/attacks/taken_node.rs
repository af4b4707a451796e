//! Attacker: whoever has taken over one node. It has the tokens of the agent and the runners of that node.
