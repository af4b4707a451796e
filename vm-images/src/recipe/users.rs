//! Rules for the users of a guest: numbers are unique, and services run as users that exist.

use std::collections::BTreeMap;

use super::model::GuestRecipe;
use super::problem::Problem;
use super::rules::Problems;

pub(super) fn check_users(guest: &GuestRecipe, p: &mut Problems) {
    let mut ids = BTreeMap::new();
    for user in &guest.users {
        if let Some(other) = ids.insert(user.id, &user.name) {
            p.push(Problem {
                at: format!("guest.users.{}", user.name),
                problem: format!("has the number of {other}"),
                rule: "numbers must be unique".into(),
            });
        }
    }
    let known = |name: &str| name == "root" || guest.users.iter().any(|u| u.name == name);
    let mut used: Vec<_> = guest
        .services
        .iter()
        .map(|s| (s.name.as_str(), s.user.as_str()))
        .collect();
    if let Some(database) = &guest.postgres {
        used.push(("postgres", "postgres"));
        used.extend(
            database
                .monitor
                .iter()
                .map(|role| (role.name.as_str(), role.user.as_str())),
        );
    }
    for (service, user) in used.into_iter().filter(|(_, user)| !known(user)) {
        p.push(Problem {
            at: format!("guest.services.{service}"),
            problem: format!("runs as {user:?}, whom nobody defines"),
            rule: "add the user to guest.users".into(),
        });
    }
}
