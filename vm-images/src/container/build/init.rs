//! Scripts and settings of the guest's init, moved below `/neonvm`.

use std::collections::BTreeMap;

use super::program::SEARCH_PATH;
use crate::container::spec::ImageSpec;
use crate::guest::{self, SYSTEM_GROUP, quote};
use crate::recipe::GuestRecipe;

/// The cgroup of the image's own program.
pub(super) const PROGRAM_GROUP: &str = "program";

/// Replacements in the scripts of other guests, for their use below `/neonvm`.
const MOVED: &[(&str, &str)] = &[
    ("#!/bin/sh", "#!/neonvm/bin/sh"),
    (" /bin/sh", " /neonvm/bin/sh"),
    ("PATH=/usr/", "PATH=/neonvm/bin:/usr/"),
    ("/var/lib/bellows/parts", "/neonvm/parts"),
    ("/run/bellows/parts", "/neonvm/run/parts"),
    ("/usr/lib/bellows/", "/neonvm/lib/"),
    ("/etc/bellows/", "/neonvm/etc/"),
    (
        "/usr/sbin/sshd -D -e",
        "/neonvm/bin/sshd -D -e -f /neonvm/etc/ssh/sshd_config",
    ),
    ("/etc/ssh/ssh_host", "/neonvm/etc/ssh/ssh_host"),
    ("/sbin/poweroff", "/neonvm/bin/poweroff"),
];

/// Scripts that only guests of container images have, by path.
const SCRIPTS: &[(&str, &str)] = &[
    (
        "neonvm/bin/set-disk-quota",
        include_str!("../../../guest/container/set-disk-quota.sh"),
    ),
    (
        "neonvm/lib/command",
        include_str!("../../../guest/container/command.sh"),
    ),
    (
        "neonvm/lib/vmshutdown",
        include_str!("../../../guest/container/vmshutdown.sh"),
    ),
    (
        "neonvm/lib/vmstart",
        include_str!("../../../guest/container/vmstart.sh"),
    ),
];

/// Scripts by their path in the guest.
pub(super) fn scripts(guest: &GuestRecipe) -> BTreeMap<String, String> {
    let known = [
        "etc/acpi/PWRF/00000080",
        "console",
        "log-port",
        "parts",
        "ready",
        "say",
        "resize-swap",
        "service",
        "spec",
        "sshd",
        "sysinit",
        "trial",
    ];
    let ours = guest::SCRIPTS.iter().filter_map(|(path, text)| {
        let (name, place) = if let Some(name) = path.strip_prefix("usr/lib/bellows/") {
            (name, format!("neonvm/lib/{name}"))
        } else if let Some(name) = path.strip_prefix("usr/local/bin/") {
            (name, format!("neonvm/bin/{name}"))
        } else {
            let event = path.trim_start_matches("etc/acpi/");
            (*path, format!("neonvm/acpi/{event}"))
        };
        known.contains(&name).then(|| (place, moved(text)))
    });
    debug_assert!(!guest.services.is_empty());
    let own = SCRIPTS
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    ours.chain(own).collect()
}

/// Adapts a text of other guests to a container image's guest.
fn moved(text: &str) -> String {
    MOVED
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Other files by their path in the guest.
pub(super) fn texts(guest: &GuestRecipe, spec: &ImageSpec) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let mut put = |path: String, text: String| drop(texts.insert(path, text));
    put("etc/inittab".to_owned(), inittab(guest, spec));
    put("neonvm/etc/container".to_owned(), String::new());
    put(
        "neonvm/etc/cgroups".to_owned(),
        format!("{PROGRAM_GROUP}\n{SYSTEM_GROUP}\n"),
    );
    let sshd = moved(include_str!("../../../guest/sshd_config"));
    // The image's programs come first in the search path. An image may have none.
    put(
        "neonvm/etc/ssh/sshd_config".to_owned(),
        format!("{sshd}SetEnv PATH={SEARCH_PATH}:/neonvm/bin\n"),
    );
    put(
        "neonvm/etc/shutdown-hook".to_owned(),
        spec.shutdown_hook.clone().unwrap_or_default(),
    );
    for service in &guest.services {
        put(
            format!("neonvm/etc/services/{}", service.name),
            guest::service_file(service),
        );
    }
    for command in &spec.commands {
        let place = format!("neonvm/commands/{}", command.name);
        put(format!("{place}.sh"), format!("{}\n", command.shell));
        put(
            format!("{place}.user"),
            format!("user={}\n", quote(&command.user)),
        );
    }
    texts
}

/// The table of busybox's init. A command is cut at 256 bytes, so commands are kept in files.
pub(super) fn inittab(guest: &GuestRecipe, spec: &ImageSpec) -> String {
    let mut text = String::from(
        "::sysinit:/neonvm/lib/sysinit\n::wait:/neonvm/lib/log-port\n\
         ::wait:/neonvm/bin/touch /neonvm/vmstart.allowed\n",
    );
    for command in &spec.commands {
        text += &format!(
            "::{}:/neonvm/lib/command {}\n",
            command.sysv_init_action, command.name
        );
    }
    for service in &guest.services {
        text += &format!("::respawn:/neonvm/lib/service {}\n", service.name);
    }
    text += &format!("::once:/neonvm/lib/ready {}\n", guest.ready_line);
    text += "::respawn:/neonvm/lib/vmstart\n\
             ::respawn:/neonvm/bin/acpid -f -l /dev/null -c /neonvm/acpi\n\
             ttyS0::respawn:/neonvm/bin/getty -n -L -l /neonvm/lib/console 115200 ttyS0 vt100\n\
             ::ctrlaltdel:/neonvm/bin/poweroff\n\
             ::shutdown:/neonvm/lib/vmshutdown\n";
    text
}
