//! The ports of a guest, and those that its pod has itself.

use serde_json::Value;

use super::field_error::{FieldError, reserved};
use super::members::at;
use crate::runner::pods_own_ports;

/// Port name the runner pod uses itself.
const RESERVED_PORT_NAME: &str = "qmp";

pub(super) fn check_port_names(object: &Value, errors: &mut Vec<FieldError>) {
    for (index, port) in ports(object) {
        if port["name"] == RESERVED_PORT_NAME {
            let field = format!("spec.guest.ports[{index}].name");
            errors.push(reserved(&field, &port["name"]));
        }
    }
}

/// What is allowed in a new, normalised and defaulted object, and yet not what its writer will
/// think: a port that its guest is not reached by. The deployed system lets it pass too, so that it
/// is no broken rule.
#[must_use]
pub fn warnings(kind: &str, object: &Value) -> Vec<String> {
    if kind != "VirtualMachine" {
        return Vec::new();
    }
    let runner = object["spec"]["runnerPort"].as_i64().unwrap_or_default();
    let own = pods_own_ports(runner);
    let taken = ports(object).filter_map(|(index, port)| {
        let number = port["port"].as_i64()?;
        let is_tcp = matches!(port["protocol"].as_str(), None | Some("TCP"));
        (is_tcp && own.contains(&number)).then(|| {
            format!(
                "spec.guest.ports[{index}].port: {number} is a port of the VM's pod itself, for its runner, its guest's daemon or its \
                 migration, so the guest is not reached by it: let it listen at another one"
            )
        })
    });
    taken.collect()
}

fn ports(object: &Value) -> impl Iterator<Item = (usize, &Value)> {
    let ports = at(object, "spec.guest.ports").as_array();
    ports.into_iter().flatten().enumerate()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_port_that_the_pod_has_itself_is_told_of() {
        let vm = json!({"spec": {"runnerPort": 25999, "guest": {"ports": [
            {"port": 5432, "protocol": "TCP"}, {"port": 20187, "protocol": "TCP"}, {"port": 20188, "protocol": "UDP"},
            {"port": 25999}, {"port": 25183, "protocol": "TCP"}, {"port": "x"},
        ]}}});
        let said = warnings("VirtualMachine", &vm);
        let of: Vec<&str> = said
            .iter()
            .filter_map(|one| one.split(' ').next())
            .collect();
        assert_eq!(
            of,
            [1, 3, 4].map(|index| format!("spec.guest.ports[{index}].port:"))
        );
        assert!(said[0].contains(" 20187 "), "{said:?}");
        assert!(warnings("VirtualMachineMigration", &vm).is_empty());
    }
}
