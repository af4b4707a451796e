//! The secret with the password of a VM's PostgreSQL. It is created beside the VM and deleted with
//! it.

use std::time::Duration;

use daemon_kit::bearer;
use protocol::postgres::{KEY, secret_name, secret_of};
use protocol::vm::API_VERSION;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::{Api, Kind};
use crate::fail::{Fail, Outcome};
use crate::vm_state::POLL_INTERVAL;

/// Label of the secrets that this module creates. Its value is the VM's name.
const LABEL: &str = "vm.neon.tech/postgres-password-of";
/// Longest time until the secret of an earlier VM of the same name is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Creates the password secret of a VM, unless it exists. `vm` is the object that the API server
/// returned. Does nothing for a VM that names another secret.
///
/// The VM is created first, because it owns the secret. The node driver waits for the secret.
pub(crate) async fn make_secret(api: &Api, vm: &Value) -> Outcome {
    let metadata = &vm["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
    let secret = secret_name(&name);
    if secret_of(vm) != Some(&secret) {
        return Ok(());
    }
    let made = make(api, &namespace, &secret, metadata).await;
    made.map_err(|fail| {
        Fail::new(
            fail.exit(),
            format!("VM {namespace}/{name} waits for the password of its PostgreSQL: {fail}"),
        )
        .rule("its guest starts when the secret is there")
        .fix(format!(
            "create it: bellows kubectl create secret generic {secret} -n {namespace} --from-literal={KEY}=WORD"
        ))
    })
}

async fn make(api: &Api, namespace: &str, secret: &str, vm: &Value) -> Outcome {
    let object = object(namespace, secret, vm);
    let end = Instant::now() + PATIENCE;
    loop {
        let Err(fail) = api
            .create(Kind::Secret, namespace, secret, &object, false)
            .await
        else {
            return Ok(());
        };
        let found = match api.get(Kind::Secret, namespace, secret).await {
            Ok(found) => found,
            // The secret was deleted between the two requests.
            Err(gone) if gone.exit() == daemon_kit::exit::Exit::NotSo && Instant::now() < end => {
                continue;
            }
            Err(_) => return Err(fail),
        };
        match owner(&found, &vm["uid"]) {
            Owner::Itself => return Ok(()),
            // The user chose the password.
            Owner::Nobody if password(&found).is_some() => return Ok(()),
            Owner::Another if Instant::now() < end => tokio::time::sleep(POLL_INTERVAL).await,
            Owner::Nobody | Owner::Another => return Err(fail),
        }
    }
}

/// The secret with a new random password.
fn object(namespace: &str, name: &str, vm: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL: vm["name"]},
            "ownerReferences": [{
                "apiVersion": API_VERSION,
                "kind": "VirtualMachine",
                "name": vm["name"],
                "uid": vm["uid"],
            }],
        },
        "stringData": {KEY: bearer::random()},
    })
}

/// Owner of a secret.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// The VM that the secret is for.
    Itself,
    /// Another VM, perhaps an earlier one of the same name.
    Another,
    /// The secret survives its VMs.
    Nobody,
}

fn owner(secret: &Value, uid: &Value) -> Owner {
    let owners = secret["metadata"]["ownerReferences"].as_array();
    match owners.map(Vec::as_slice).unwrap_or_default() {
        [] => Owner::Nobody,
        owners if owners.iter().any(|owner| owner["uid"] == *uid) => Owner::Itself,
        _ => Owner::Another,
    }
}

/// The password in a secret: the first line, as the guest reads it.
pub(crate) fn password(secret: &Value) -> Option<String> {
    let bytes: k8s_openapi::ByteString =
        serde_json::from_value(secret["data"][KEY].clone()).ok()?;
    let text = String::from_utf8(bytes.0).ok()?;
    let line = text.lines().next().unwrap_or_default();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_belongs_to_its_vm_and_each_has_a_password_of_its_own() {
        let vm = json!({"name": "pg", "uid": "u-1"});
        let (one, two) = (
            object("a", "postgres-pg", &vm),
            object("a", "postgres-pg", &vm),
        );
        assert_eq!(owner(&one, &vm["uid"]), Owner::Itself);
        assert_eq!(owner(&one, &json!("u-2")), Owner::Another);
        assert_eq!(owner(&json!({"metadata": {}}), &vm["uid"]), Owner::Nobody);
        let word = |secret: &Value| secret["stringData"][KEY].as_str().unwrap().to_owned();
        assert!(word(&one).len() >= 32 && word(&one) != word(&two));
        assert_eq!(one["metadata"]["labels"][LABEL], "pg");
    }

    #[test]
    fn password_is_the_first_line_of_the_secret() {
        let secret = |data: &str| json!({"data": {KEY: data}});
        assert_eq!(password(&secret("YQpi")), Some("a".into()));
        for empty in [secret(""), secret("Cg=="), json!({"data": {}}), json!({})] {
            assert_eq!(password(&empty), None, "{empty}");
        }
    }
}
