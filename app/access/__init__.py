"""Who may do what: the access rules, and the tokens by which somebody proves to be someone.

It fills the broker's policy and knows no protocol. The only room that reads keys; what it says or logs never holds any
part of a token.
"""
