use super::*;

fn release(version: &str, links: &Value) -> Release {
    let manifest = json!({
        "version": version, "parts": {}, "links": links, "independent": false, "notes": "",
    });
    let manifest = serde_json::from_value(manifest).expect("a manifest");
    Release::of_manifest(&Version::parse(version).expect("a version"), &manifest)
}

fn instance(name: &str, version: &Value) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": name},
        "status": {"parts": {"monitor": {"version": version}}},
    })
}

/// Requirement: R12
#[test]
fn guest_without_a_common_version_of_a_link_is_named() {
    let next = release(
        "2.0.0",
        &json!({"monitor": {"min": 3, "max": 4}, "other": {"min": 9, "max": 9}}),
    );
    let known = [
        ("1.0.0", json!({"monitor": {"min": 1, "max": 2}})),
        (
            "1.5.0",
            json!({"monitor": {"min": 2, "max": 3}, "other": {"min": 1, "max": 1}}),
        ),
        ("1.6.0", json!({})),
    ];
    let known = known.map(|(version, links)| (version.to_owned(), release(version, &links)));
    let instances = [
        instance("vm-old", &json!("1.0.0")),
        instance("vm-new", &json!("1.5.0")),
        instance("vm-plain", &json!("1.6.0")),
        instance("vm-image", &json!("0.1.0")),
        instance("vm-unseen", &json!("")),
        instance("vm-odd", &json!(7)),
        json!({"metadata": {}, "status": {"parts": []}}),
        Value::Null,
    ];
    let findings = compare(&next, running_parts(&instances), &known.into());
    assert_eq!(findings.understood, 2);
    let names = |parts: Vec<&RunningPart>| -> Vec<String> {
        parts.iter().map(|part| part.instance.clone()).collect()
    };
    let refused = findings.refused.iter().map(|(part, _)| part).collect();
    assert_eq!(names(refused), ["default/vm-old"]);
    assert_eq!(
        names(findings.unknown.iter().collect()),
        ["default/vm-image"]
    );
    let (_, reason) = &findings.refused[0];
    assert!(
        reason.contains("3 to 4") && reason.contains("1 to 2"),
        "{reason}"
    );
}
