//! Objects that a set makes: its members, and the config map with their addresses.

use std::collections::BTreeMap;

use protocol::policy::{
    ANNOTATION_SET_VERSION, GROUP, LABEL_SET, SET_KIND, VERSION, VmSet, VmTemplate,
};
use protocol::vm::API_VERSION;
use serde::Serialize;
use serde_json::{Value, json};

use super::member::Member;

/// File with a line for each member, for scripts.
const LINES: &str = "members";
/// File with members and values, for programs.
const JSON: &str = "members.json";

/// The set as owner of what it makes.
pub(super) fn owner(set: &VmSet) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": SET_KIND,
        "name": set.metadata.name,
        "uid": set.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// A member of the set.
pub(super) fn member(set: &VmSet, name: &str, version: u32, template: &VmTemplate) -> Value {
    let mut labels = template.metadata.labels.clone();
    labels.insert(LABEL_SET.to_owned(), set.metadata.name.clone());
    let mut annotations = template.metadata.annotations.clone();
    annotations.insert(ANNOTATION_SET_VERSION.to_owned(), version.to_string());
    json!({
        "apiVersion": API_VERSION,
        "kind": "VirtualMachine",
        "metadata": {
            "name": name,
            "namespace": set.metadata.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner(set)],
        },
        "spec": template.spec,
    })
}

/// A member in the file for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemberEntry<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    address: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    overlay_address: &'a str,
    version: u32,
    image: &'a str,
    up: bool,
}

/// Files of the config map: members that are not being deleted, by ordinal, and the set's values.
pub(super) fn files(set: &VmSet, members: &BTreeMap<u32, Member>) -> BTreeMap<String, String> {
    let staying = members.values().filter(|member| !member.is_leaving());
    let entries: Vec<MemberEntry<'_>> = staying
        .map(|member| MemberEntry {
            name: &member.name,
            address: &member.address,
            overlay_address: &member.extra_address,
            version: member.version,
            image: &member.image,
            up: member.is_up(),
        })
        .collect();
    let lines: String = entries.iter().map(line).collect();
    let mut document = json!({
        "set": set.metadata.name,
        "members": entries,
        "kv": set.spec.values(),
    });
    if let Some(command) = set.spec.command() {
        document["command"] = command.into();
    }
    BTreeMap::from([
        (LINES.to_owned(), lines),
        (JSON.to_owned(), document.to_string()),
    ])
}

/// `NAME ADDRESS VERSION up|down`, with `-` for an absent address.
fn line(member: &MemberEntry<'_>) -> String {
    let address = if member.address.is_empty() {
        "-"
    } else {
        member.address
    };
    let state = if member.up { "up" } else { "down" };
    format!("{} {address} {} {state}\n", member.name, member.version)
}
