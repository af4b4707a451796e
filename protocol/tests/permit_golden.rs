//! Every message of the permit link, both directions, against the bytes under `testdata/permit/`.
//!
//! * `testdata/permit/*.json`: exactly what we write; it reads back to the same value.
//! * `testdata/permit/accepted/`: other spellings a peer may use; they read as the value given
//!   here.
//! * `testdata/permit/rejected/NAME.json`: bodies a server refuses; `NAME.txt` is the status and
//!   the whole answer.
//! * `testdata/permit/errors.txt`: status and text of every refusal there is.
//!
//! Requirement: N07. Golden wire files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use protocol::permit::{
    AgentRequest, MigrateResponse, NamespacedName, PROTO_VERSION, PermitRefusal, PluginResponse,
    RequestMetrics, Unproved,
};
use protocol::units::{Bytes, MilliCpu, Resources};

fn folder(name: &str) -> PathBuf {
    Path::new("testdata/permit").join(name)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(folder(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of the `.json` files in a folder, so that no file goes unread.
fn names(of: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder(of)).expect("the folder is there");
    let names = entries.filter_map(|entry| {
        let name = entry
            .expect("entry")
            .file_name()
            .into_string()
            .expect("UTF-8");
        name.strip_suffix(".json").map(str::to_owned)
    });
    names.collect()
}

fn request(
    (namespace, name): (&str, &str),
    unit: Resources,
    resources: Resources,
    last_permit: Option<Resources>,
    load: Option<f32>,
) -> AgentRequest {
    AgentRequest {
        proto_version: PROTO_VERSION,
        pod: NamespacedName {
            namespace: namespace.into(),
            name: name.into(),
        },
        compute_unit: unit,
        resources,
        last_permit,
        metrics: load.map(|load_avg_1m| RequestMetrics { load_avg_1m }),
    }
}

const GIB: u64 = 1 << 30;
const UNIT: Resources = Resources::new(250, GIB);

fn requests() -> BTreeMap<&'static str, AgentRequest> {
    let (first, second) = (("default", "vm-abc"), ("default", "compute-a-x7k2p"));
    let (half, one) = (Resources::new(500, 2 * GIB), Resources::new(1000, 4 * GIB));
    let odd = Resources::new(1250, 4_831_838_209);
    BTreeMap::from([
        (
            "request_first_contact",
            request(first, UNIT, half, None, None),
        ),
        (
            "request_increase",
            request(second, UNIT, one, Some(half), Some(0.93)),
        ),
        (
            "request_decrease",
            request(second, UNIT, UNIT, Some(one), Some(0.0)),
        ),
        (
            "request_odd_sizes",
            request(
                ("ns-2", "odd"),
                Resources::new(333, 150_589_570),
                odd,
                Some(Resources::new(0, 1023)),
                Some(12.5),
            ),
        ),
    ])
}

#[test]
fn request_in_the_usual_form_is_refused_by_its_version_or_load() {
    let body = |request: &AgentRequest| serde_json::to_vec(request).expect("encodes");
    let usual = request(("ns", "vm"), UNIT, UNIT, None, Some(1.0));
    assert_eq!(AgentRequest::decode(&body(&usual)), Ok(usual.clone()));
    let other = AgentRequest {
        proto_version: PROTO_VERSION + 1,
        ..usual.clone()
    };
    assert!(AgentRequest::decode(&body(&other)).is_err());
    let text = String::from_utf8(body(&usual)).expect("UTF-8");
    let load = text.replace("\"loadAvg1M\":1.0", "\"loadAvg1M\":1e39");
    assert_ne!(load, text);
    assert!(AgentRequest::decode(load.as_bytes()).is_err());
}

fn responses() -> BTreeMap<&'static str, PluginResponse> {
    let migrate = Some(MigrateResponse {});
    BTreeMap::from([
        (
            "response_permit",
            PluginResponse {
                permit: Resources::new(750, 3 * GIB),
                migrate: None,
            },
        ),
        (
            "response_migrate",
            PluginResponse {
                permit: Resources::new(2000, 1536 << 20),
                migrate,
            },
        ),
    ])
}

#[test]
fn n07_messages_are_written_byte_for_byte() {
    let mut seen = BTreeSet::new();
    for (name, value) in requests() {
        let bytes = read(&format!("{name}.json"));
        assert_eq!(
            serde_json::to_string(&value).expect("encodes"),
            bytes,
            "{name}"
        );
        assert_eq!(AgentRequest::decode(bytes.as_bytes()), Ok(value), "{name}");
        seen.insert(name.to_owned());
    }
    for (name, value) in responses() {
        let bytes = read(&format!("{name}.json"));
        assert_eq!(
            serde_json::to_string(&value).expect("encodes"),
            bytes,
            "{name}"
        );
        assert_eq!(
            serde_json::from_str::<PluginResponse>(&bytes).expect("decodes"),
            value,
            "{name}"
        );
        seen.insert(name.to_owned());
    }
    assert_eq!(seen, names(""), "every file is compared");
}

#[test]
fn n07_other_spellings_read_as_the_same_message() {
    let (requests, responses) = (requests(), responses());
    for name in names("accepted") {
        let bytes = read(&format!("accepted/{name}.json"));
        let request = requests
            .iter()
            .find(|(prefix, _)| name.starts_with(**prefix));
        let response = responses
            .iter()
            .find(|(prefix, _)| name.starts_with(**prefix));
        match (request, response) {
            (Some((_, value)), None) => {
                assert_eq!(
                    AgentRequest::decode(bytes.as_bytes()).as_ref(),
                    Ok(value),
                    "{name}"
                );
            }
            (None, Some((_, value))) => {
                assert_eq!(
                    &serde_json::from_str::<PluginResponse>(&bytes).expect("decodes"),
                    value,
                    "{name}"
                );
            }
            _ => panic!("{name} is named after no message"),
        }
    }
}

#[test]
fn n07_refused_bodies_get_exactly_their_answer() {
    for name in names("rejected") {
        let body = read(&format!("rejected/{name}.json"));
        let expected = read(&format!("rejected/{name}.txt"));
        let checked = AgentRequest::decode(body.as_bytes()).and_then(|request| request.validate());
        let refusal = checked.expect_err(&name);
        assert_eq!(
            format!("{} {refusal}\n", refusal.status()),
            expected,
            "{name}"
        );
    }
}

#[test]
fn n07_every_refusal_has_its_status_and_text() {
    let all = [
        PermitRefusal::MustBePost,
        PermitRefusal::BadJson,
        PermitRefusal::InvalidVersion,
        PermitRefusal::VersionMismatch(6),
        PermitRefusal::ZeroComputeUnit("vCPUs"),
        PermitRefusal::ZeroComputeUnit("mem"),
        PermitRefusal::PodNotFound,
        PermitRefusal::NodeUnknown,
        PermitRefusal::NotAVm,
        PermitRefusal::PatchFailed,
        PermitRefusal::BadPod,
        PermitRefusal::TimedOut,
        PermitRefusal::Panicked,
        PermitRefusal::NotReady,
    ];
    let lines = all.map(|refusal| format!("{} {refusal}\n", refusal.status()));
    assert_eq!(lines.concat(), read("errors.txt"));
}

#[test]
fn refusal_of_a_caller_is_json_with_a_reason_and_others_are_text() {
    let unauthorized = PermitRefusal::Unauthorized;
    let (kind, text) = PermitRefusal::BadJson.body();
    assert_eq!(kind, "text/plain; charset=utf-8");
    assert_eq!(text, PermitRefusal::BadJson.to_string());
    for (refusal, reason) in [
        (PermitRefusal::Forbidden, "forbidden"),
        (PermitRefusal::ForeignNode, "foreign_node"),
        (PermitRefusal::Unreviewed, "not_reviewed"),
        (unauthorized(Unproved::NoCertificate), "no_certificate"),
        (unauthorized(Unproved::NoToken), "no_token"),
        (unauthorized(Unproved::BadToken), "bad_token"),
        (unauthorized(Unproved::WrongAudience), "wrong_audience"),
    ] {
        let (kind, text) = refusal.body();
        assert_eq!(kind, "application/json");
        let body: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let error = refusal.to_string();
        assert_eq!(body, serde_json::json!({"error": error, "reason": reason}));
    }
}

fn resources() -> impl Strategy<Value = Resources> {
    let mem = prop_oneof![
        0..=i64::MAX as u64,
        (0_u64..512).prop_map(|gib| gib << 30),
        0_u64..4096
    ];
    (any::<u32>(), mem).prop_map(|(cpu, mem)| Resources {
        cpu: MilliCpu(cpu),
        mem: Bytes(mem),
    })
}

proptest! {
    #[test]
    fn whatever_is_written_reads_back(
        unit in resources(), asked in resources(), last in prop::option::of(resources()),
        load in prop::option::of(0.0_f32..1000.0), namespace in "[a-z0-9-]{1,20}", name in "\\PC{0,40}",
    ) {
        let value = request((&namespace, &name), unit, asked, last, load);
        let text = serde_json::to_vec(&value).expect("encodes");
        prop_assert_eq!(AgentRequest::decode(&text), Ok(value));
        let response = PluginResponse { permit: asked, migrate: None };
        let text = serde_json::to_string(&response).expect("encodes");
        prop_assert_eq!(serde_json::from_str::<PluginResponse>(&text).expect("decodes"), response);
    }

    #[test]
    fn no_body_crashes_the_decoder(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = AgentRequest::decode(&body);
    }

    #[test]
    fn no_change_of_a_good_body_crashes_the_decoder(at in 0_usize..180, byte: u8, cut in 0_usize..200) {
        let mut body = read("request_increase.json").into_bytes();
        body[at] = byte;
        let _ = AgentRequest::decode(&body);
        let _ = AgentRequest::decode(&body[..cut.min(body.len())]);
    }
}
