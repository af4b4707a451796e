//! How a VM of the PostgreSQL image gets the password of its database: a secret, given as a watched
//! disk of the spec.

use serde_json::{Value, json};

/// Name of the disk in `spec.disks`.
pub const DISK_NAME: &str = "postgres-password";
/// Directory in the guest where the image looks for the password. It is in memory, and only root
/// may enter it.
pub const MOUNT_PATH: &str = "/run/bellows/postgres";
/// Key of the secret, and name of the file in [`MOUNT_PATH`].
pub const KEY: &str = "password";
/// The role that the password is of: the superuser.
pub const ROLE: &str = "postgres";
/// TCP port of the PostgreSQL server.
pub const PORT: u16 = 5432;

/// Name of the secret that `bellows vm create` makes for a VM.
#[must_use]
pub fn secret_name(vm: &str) -> String {
    format!("postgres-{vm}")
}

/// Whether an image, by its name, is one of a PostgreSQL guest: the last part of its path says so.
#[must_use]
pub fn is_postgres(image: &str) -> bool {
    let name = image.split('@').next().unwrap_or_default();
    let last = name.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default().contains(ROLE)
}

/// The entry of `spec.disks` that gives a guest the password of a secret. A changed password
/// reaches it while it runs.
#[must_use]
pub fn disk(secret: &str) -> Value {
    json!({
        "name": DISK_NAME, "mountPath": MOUNT_PATH, "watch": true, "secret": {"secretName": secret},
    })
}

/// The secret that a VM has its password from, if any.
#[must_use]
pub fn secret_of(vm: &Value) -> Option<&str> {
    let mut disks = vm["spec"]["disks"].as_array()?.iter();
    let disk = disks.find(|disk| disk["mountPath"] == MOUNT_PATH)?;
    disk["secret"]["secretName"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_image_is_known_by_the_last_part_of_its_name() {
        for image in [
            "bellows/postgres:15",
            "bellows/vm-postgres:15",
            "registry.example:5000/mine/postgres-16@sha256:00",
        ] {
            assert!(is_postgres(image), "{image}");
        }
        for image in ["bellows/minimal", "postgres/exporter:1", "x:postgres", ""] {
            assert!(!is_postgres(image), "{image}");
        }
    }

    #[test]
    fn vm_names_the_secret_of_its_password() {
        let vm =
            json!({"spec": {"disks": [{"name": "x", "mountPath": "/x"}, disk("postgres-pg")]}});
        assert_eq!(secret_of(&vm), Some("postgres-pg"));
        assert_eq!(secret_of(&json!({"spec": {}})), None);
        let spec: crate::vm::Disk = serde_json::from_value(disk("s")).expect("a disk of a spec");
        assert!(spec.watch && spec.secret.is_some());
    }

    #[test]
    fn disk_of_the_password_passes_admission() {
        let vm = json!({"metadata": {"name": "vm"}, "spec": {"disks": [disk("s")], "guest": {"rootDisk": {"image": "x"}}}});
        let errors = crate::admission::validate_create("VirtualMachine", &vm).err();
        let of_disks = errors.into_iter().flatten();
        assert!(
            !of_disks
                .into_iter()
                .any(|error| error.field.contains("disks"))
        );
    }
}
