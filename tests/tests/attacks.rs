//! Attackers of `docs/threat-model.md` against real components: `cargo test -p bellows-tests --test
//! attacks`. Each attacker lists its attempts and results ([`bellows_tests::attacks`]).

#[path = "attacks/bounds.rs"]
mod bounds;
#[path = "attacks/guest.rs"]
mod guest;
#[path = "attacks/image_author.rs"]
mod image_author;
#[path = "attacks/local_user.rs"]
mod local_user;
#[path = "attacks/operator.rs"]
mod operator;
#[path = "attacks/pod.rs"]
mod pod;
#[path = "attacks/taken_node.rs"]
mod taken_node;
#[path = "attacks/tenant.rs"]
mod tenant;
