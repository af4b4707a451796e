//! Attacker: a tenant with the stock role `edit` in one namespace. It has the VM objects of that namespace.
