//! Messages that decode, and malformed ones that do not.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("short");
    [&[number << 3 | 2, length], content].concat()
}

fn number(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn enveloped(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
    [
        MAGIC.to_vec(),
        bytes(1, &type_meta),
        bytes(2, raw),
        bytes(3, b""),
    ]
    .concat()
}

fn messages() -> Messages {
    crate::kinds::protobuf().expect("the document is sound")
}

#[test]
fn objects_are_read() {
    let label = [bytes(1, b"a"), bytes(2, b"b")].concat();
    let metadata = [
        bytes(1, b"s"),
        bytes(2, b""),
        bytes(8, b""),
        bytes(11, &label),
        bytes(14, b"x"),
        bytes(14, b"y"),
    ]
    .concat();
    let data = [bytes(1, b"k"), bytes(2, b"hello")].concat();
    let secret = [
        bytes(1, &metadata),
        bytes(2, &data),
        bytes(3, b"Opaque"),
        number(5, 0),
    ]
    .concat();
    let read = messages()
        .decode(&enveloped("v1", "Secret", &secret))
        .expect("read");
    let expected = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": false, "data": {"k": "aGVsbG8="},
        "metadata": {"name": "s", "labels": {"a": "b"}, "finalizers": ["x", "y"]}});
    assert_eq!(read, expected);
    let options = messages()
        .decode(&enveloped("v1", "DeleteOptions", &number(1, 0)))
        .expect("read");
    assert_eq!(options["gracePeriodSeconds"], 0);
    let spec = [
        number(2, 15),
        bytes(4, &[number(1, 100), number(2, 0)].concat()),
    ]
    .concat();
    let lease = messages()
        .decode(&enveloped(
            "coordination.k8s.io/v1",
            "Lease",
            &bytes(2, &spec),
        ))
        .expect("read");
    assert_eq!(
        lease["spec"],
        json!({"leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:01:40Z"})
    );
}

#[test]
fn what_is_no_object_is_refused() {
    let messages = messages();
    assert!(matches!(
        messages.decode(b"{}"),
        Err(ProtobufError::Malformed(_))
    ));
    assert!(matches!(
        messages.decode(&enveloped("v1", "Pod", b"")),
        Err(ProtobufError::UnknownKind(_))
    ));
    assert!(matches!(
        messages.decode(&enveloped("v1", "Secret", &[10, 200])),
        Err(ProtobufError::Malformed(_))
    ));
    assert!(matches!(
        messages.decode(&enveloped("v1", "Secret", &number(1, 1))),
        Err(ProtobufError::Malformed(_))
    ));
}

proptest! {
    #[test]
    fn no_bytes_panic(raw in prop::collection::vec(any::<u8>(), 0..60)) {
        let messages = messages();
        let _ = messages.decode(&raw);
        for kind in ["Secret", "Event", "Binding"] {
            let _ = messages.decode(&enveloped("v1", kind, &raw));
        }
    }
}
