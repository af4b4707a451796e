//! Attacker: root inside a guest. It has its devices, its network, its monitor and its metrics page.
