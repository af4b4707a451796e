//! Users of the guest: those of the image and those of our services.

use crate::container::context::Root;
use crate::error::BuildError;
use crate::recipe::GuestRecipe;

/// Adds the recipe's users that the image lacks, and allows root to log in.
pub(super) fn users(root: Root<'_>, guest: &GuestRecipe) -> Result<(), BuildError> {
    let mut passwd = root.text("etc/passwd").unwrap_or_default();
    let mut group = root.text("etc/group").unwrap_or_default();
    let has = |text: &str, name: &str| {
        text.lines()
            .any(|line| line.split(':').next() == Some(name))
    };
    for text in [&mut passwd, &mut group] {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if !has(&passwd, "root") {
        passwd.insert_str(0, "root:*:0:0:root:/root:/neonvm/bin/sh\n");
    }
    if !has(&group, "root") {
        group.insert_str(0, "root:*:0:\n");
    }
    for user in &guest.users {
        if has(&passwd, &user.name) {
            continue;
        }
        let id = free_id(&passwd, &group, user.id);
        passwd += &format!(
            "{0}:*:{id}:{id}:{0}:{1}:/usr/sbin/nologin\n",
            user.name, user.home
        );
        if !has(&group, &user.name) {
            group += &format!("{}:*:{id}:\n", user.name);
        }
    }
    let lines = passwd.lines().map(|line| with_shell(root, line) + "\n");
    let passwd: String = lines.collect();
    root.put("etc/passwd", passwd.as_bytes(), 0o644)?;
    root.put("etc/group", group.as_bytes(), 0o644)?;
    // A password of `!` locks root out of ssh. `*` matches no password and does not lock.
    if let Some(shadow) = root.text("etc/shadow")
        && shadow.lines().any(|line| line.starts_with("root:!"))
    {
        let opened = |line: &str| match line.strip_prefix("root:!") {
            Some(rest) => format!("root:*{}\n", rest.trim_start_matches(['!', '*'])),
            None => format!("{line}\n"),
        };
        let shadow: String = shadow.lines().map(opened).collect();
        root.put("etc/shadow", shadow.as_bytes(), 0o640)?;
    }
    Ok(())
}

/// Replaces root's shell if the image lacks it.
fn with_shell(root: Root<'_>, line: &str) -> String {
    match line.rsplit_once(':') {
        Some((head, shell)) if line.starts_with("root:") && !root.is_program(shell) => {
            format!("{head}:/neonvm/bin/sh")
        }
        _ => line.to_owned(),
    }
}

/// The first number from `from` on that no user and no group has.
fn free_id(passwd: &str, group: &str, from: u32) -> u32 {
    let is_taken = |id: u32| {
        let mut lines = passwd.lines().chain(group.lines());
        lines.any(|line| line.split(':').nth(2) == Some(&id.to_string()))
    };
    (from..).find(|id| !is_taken(*id)).unwrap_or(from)
}
