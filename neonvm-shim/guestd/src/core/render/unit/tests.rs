use super::*;
use proptest::prelude::*;

const WHOLE: &str = r#"
destination = "/srv/program/size.conf"
owner = "postgres"
mode = "0600"
template = "cpus {{ cpus }}\n"
check = ["/bin/check", "--config={file}"]
signal = { pidfile = "/run/program.pid" }
[files]
site = { path = "/mnt/site.json", format = "json" }
zone = { path = "/mnt/zone" }
"#;

#[test]
fn v27_unit_is_read_with_its_defaults() {
    let unit = parse(WHOLE).expect("a unit");
    assert_eq!((unit.owner.as_str(), unit.mode.0), ("postgres", 0o600));
    assert_eq!(
        unit.signal,
        Some(Signal::Pidfile("/run/program.pid".into()))
    );
    assert_eq!(unit.files["site"].format, Format::Json);
    assert_eq!(unit.files["zone"].format, Format::Text);
    let least = parse("destination = '/a/b'\ntemplate = ''").expect("a unit");
    assert_eq!((least.owner.as_str(), least.mode.0), ("root", 0o644));
    assert_eq!((least.check, least.signal), (None, None));
}

#[test]
fn v30_each_kind_of_signal_is_read() {
    let read = |signal: &str| {
        parse(&format!(
            "destination = '/a/b'\ntemplate = ''\nsignal = {signal}"
        ))
        .map(|unit| unit.signal)
    };
    let command = vec!["/bin/reload".to_owned(), "now".to_owned()];
    assert_eq!(
        read("{ command = ['/bin/reload', 'now'] }"),
        Ok(Some(Signal::Command(command)))
    );
    for (url, address, path) in [
        (
            "http://127.0.0.1:9090/-/reload?x=1",
            "127.0.0.1:9090",
            "/-/reload?x=1",
        ),
        ("http://[::1]:80", "[::1]:80", "/"),
    ] {
        let address = address.parse().expect("an address");
        let signal = Signal::Http(Loopback {
            address,
            path: path.to_owned(),
        });
        assert_eq!(read(&format!("{{ http = '{url}' }}")), Ok(Some(signal)));
    }
    for url in [
        "https://127.0.0.1:1/",
        "http://127.0.0.1/",
        "http://localhost:80/",
        "http://10.0.2.2:80/",
        "http://user@127.0.0.1:80/",
        "/path",
        "",
    ] {
        let error = read(&format!("{{ http = '{url}' }}")).expect_err(url);
        assert!(error.to_string().contains("loopback"), "{url}: {error}");
    }
}

#[test]
fn v27_refusal_names_field_and_rule() {
    let long = format!("{WHOLE}\n# {}", "x".repeat(MAX_INPUT_BYTES));
    for (from, to, said) in [
        (
            "/srv/program/size.conf",
            "size.conf",
            "destination: size.conf is not an absolute path",
        ),
        (
            "/srv/program/size.conf",
            "/srv/../etc/x",
            "destination: /srv/../etc/x is not",
        ),
        ("\"0600\"", "\"4755\"", "line 4: mode: write octal digits"),
        ("\"0600\"", "\"none\"", "line 4: mode: write octal digits"),
        ("\"postgres\"", "\"\"", "owner: "),
        ("{{ cpus }}", "{{ cpus", "template: line "),
        (
            "\"cpus {{ cpus }}\\n\"",
            "5",
            "line 5: give a text, or a table of file names and texts",
        ),
        (
            "/bin/check\"",
            "check\"",
            "check: check is not an absolute path",
        ),
        (
            "{file}",
            "",
            "check: no argument names the new file by {file}",
        ),
        ("owner", "ower", "line 3: unknown field `ower`"),
        ("mode = \"0600\"", "mode = ", "line 4: "),
        ("pidfile", "pid", "line 7: unknown variant `pid`"),
        (
            "/mnt/zone",
            "mnt/zone",
            "files: mnt/zone is not an absolute path",
        ),
        (WHOLE, long.as_str(), "file: it is longer than 65536 bytes"),
    ] {
        let error = parse(&WHOLE.replace(from, to)).expect_err(to).to_string();
        assert!(error.starts_with(said), "{to}: {error}");
    }
    for name in ["", "a/b", ".hidden", ".."] {
        let text = format!("destination = '/a/b'\n[template]\n'{name}' = ''");
        let error = parse(&text).expect_err(name).to_string();
        assert!(error.starts_with("template: give 1 to 16 files"), "{error}");
    }
}

#[test]
fn v27_only_plain_names_are_units() {
    assert_eq!(name("pg-15.toml"), Some("pg-15"));
    for file in ["pg", ".toml", "Pg.toml", "a b.toml", "pg.toml~", "..data"] {
        assert_eq!(name(file), None, "{file}");
    }
}

#[test]
fn v28_owner_is_found_by_name_or_number() {
    let passwd = "root:x:0:0:root:/root:/bin/sh\npostgres:x:110:120::/srv/pg:/bin/sh\nbroken:x\n";
    assert_eq!(identity(passwd, "postgres"), Some((110, 120)));
    assert_eq!(identity(passwd, "110"), Some((110, 120)));
    assert_eq!(identity(passwd, "7"), Some((7, 7)));
    assert_eq!(identity(passwd, "broken"), None);
    assert_eq!(identity("", "root"), None);
}

proptest! {
    #[test]
    fn v27_never_panics(text in "(?s).{0,200}") {
        let _ = parse(&text);
        let _ = identity(&text, "root");
    }
}
