//! Texts that templates give, to the byte, and what a template may not do.

use super::*;
use protocol::units::Bytes;

fn values(cpus: u32, mib: u64) -> Values {
    Values {
        cpus,
        memory: Bytes(mib << 20),
        files: BTreeMap::new(),
    }
}

fn file(text: &str) -> Template {
    Template::File(text.to_owned())
}

fn rendered(text: &str, values: &Values) -> String {
    match render(&file(text), values).expect(text) {
        Content::File(text) => text,
        Content::Folder(_) => panic!("a folder of a file's template"),
    }
}

fn failure(text: &str, values: &Values) -> String {
    render(&file(text), values).expect_err(text)
}

#[test]
fn v27_size_of_the_guest_is_rendered() {
    let template = "\
# written by neonvmd
cache = {{ memory_mib * 3 // 4 }}MB
workers = {{ [cpus, 8] | min }}
{% if cpus > 2 %}
parallel = on
{% endif %}
bytes = {{ memory_bytes }}
";
    let small = "# written by neonvmd\ncache = 768MB\nworkers = 1\nbytes = 1073741824\n";
    assert_eq!(rendered(template, &values(1, 1024)), small);
    let large =
        "# written by neonvmd\ncache = 3072MB\nworkers = 4\nparallel = on\nbytes = 4294967296\n";
    assert_eq!(rendered(template, &values(4, 4096)), large);
}

#[test]
fn v27_watched_files_are_rendered() {
    let mut values = values(1, 512);
    let peers = serde_json::json!({"peers": ["a:1", "b:2"], "limit": 2.5, "on": true});
    for (name, file) in [
        ("site", WatchedFile::Json(peers)),
        ("zone", WatchedFile::Text("north".to_owned())),
    ] {
        values.files.insert(name.to_owned(), file);
    }
    let template = "zone {{ files.zone }}\n{% for peer in files.site.peers %}\npeer {{ peer }}\n{% endfor %}\nlimit {{ files.site.limit }} {{ files.site.on }} {{ 'on' if files.site.on else 'off' }}\n";
    let text = "zone north\npeer a:1\npeer b:2\nlimit 2.5 True on\n";
    assert_eq!(rendered(template, &values), text);
}

#[test]
fn v27_each_file_of_a_folder_is_rendered() {
    let folder = |cpus: &str| {
        BTreeMap::from([
            ("a.conf".to_owned(), format!("cpus {cpus}\n")),
            ("b.conf".to_owned(), "fixed\n".to_owned()),
        ])
    };
    let folder_template = Template::Folder(folder("{{ cpus }}"));
    let content = render(&folder_template, &values(3, 512));
    assert_eq!(content, Ok(Content::Folder(folder("3"))));
}

#[test]
fn v27_failure_names_line_and_reason() {
    let none = values(2, 512);
    for (template, reason) in [
        ("\n{{ cpu }}", "line 2: undefined value"),
        ("{{ files.zone }}", "line 1: undefined value"),
        ("{{ cpus.x.y }}", "line 1: undefined value"),
        ("{{ cpus + 'a' }}", "line 1: invalid operation"),
        ("{{ 1 // 0 }}", "line 1: "),
    ] {
        let error = failure(template, &none);
        assert!(error.starts_with(reason), "{template}: {error}");
    }
    let mut values = none;
    let unusable = WatchedFile::Unusable("it is not JSON".to_owned());
    values.files.insert("site".to_owned(), unusable);
    assert_eq!(failure("{{ cpus }}", &values), "files.site: it is not JSON");
    assert_eq!(rendered("{{ x | default(7) }}", &self::values(1, 1)), "7");
}

#[test]
fn v27_template_without_end_is_stopped() {
    let digits = "[0,1,2,3,4,5,6,7,8,9]";
    let nested: String = (0..8)
        .map(|n| format!("{{% for i{n} in {digits} %}}"))
        .collect();
    let endless = format!("{nested}x{}", "{% endfor %}".repeat(8));
    let doubled = format!(
        "{{% set x = 'ab' %}}{}{{{{ x }}}}",
        "{% set x = x ~ x %}".repeat(60)
    );
    for template in [endless.as_str(), &doubled, "{{ 'a' * 1000000000 }}"] {
        let error = failure(template, &values(1, 1));
        assert!(
            error.contains("takes more than 50000 steps") || error.contains("too large"),
            "{error}"
        );
    }
}

#[test]
fn v27_template_reads_no_other_template() {
    for template in [
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
        "{% macro x() %}{% endmacro %}",
    ] {
        let error = compile(&file(template)).expect_err(template);
        assert!(error.starts_with("line 1: syntax error"), "{error}");
    }
}
