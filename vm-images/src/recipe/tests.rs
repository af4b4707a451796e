use std::collections::BTreeMap;

use super::*;

const GOOD: &str = r#"
format = 1
name = "me/thing:1"
description = "x"
[debian]
packages = ["busybox-static"]
[[debian.suites]]
name = "bookworm"
[guest]
disk_mib = 256
[guest.kernel]
cmdline = "console=ttyS0"
"#;

fn problems(text: &str) -> Vec<String> {
    match Recipe::parse("test", text) {
        Err(RecipeError::Invalid { problems, .. }) => {
            problems.iter().map(ToString::to_string).collect()
        }
        other => panic!("expected problems, got {other:?}"),
    }
}

/// Requirement: N46
#[test]
fn builtin_recipes_are_sound_and_found_by_name() {
    let names: Vec<_> = builtin_recipes().into_iter().map(|r| r.name).collect();
    assert_eq!(
        names,
        ["bellows/postgres:15", "bellows/minimal", "bellows/qemu"]
    );
    for name in names {
        assert_eq!(Recipe::load(&name).unwrap().name, name);
    }
}

/// Requirement: N46
#[test]
fn the_postgres_recipe_is_what_the_other_parts_rely_on() {
    let recipe = Recipe::load("bellows/postgres:15").unwrap();
    let guest = recipe.guest().unwrap();
    let ports: BTreeMap<_, _> = guest
        .ports
        .iter()
        .map(|p| (p.name.as_str(), p.port))
        .collect();
    let expected = [
        ("metrics", 9100),
        ("monitor", 10301),
        ("neonvmd", 25183),
        ("postgres", 5432),
        ("ssh", 22),
    ];
    assert_eq!(ports, BTreeMap::from(expected));
    let command = |name: &str| {
        guest
            .services
            .iter()
            .find(|s| s.name == name)
            .unwrap()
            .command
            .join(" ")
    };
    assert_eq!(
        command("neonvmd"),
        "/usr/local/bin/neonvmd --addr=0.0.0.0:25183"
    );
    assert!(command("vm-monitor").contains("--cgroup postgres"));
    assert!(command("vm-monitor").contains("0.0.0.0:10301"));
    assert!(command("vm-monitor").contains("--control /run/vm-monitor/control.sock"));
    let postgres = guest.postgres.as_ref().unwrap();
    assert_eq!((postgres.version, postgres.bench_scale), (15, 5));
    assert_eq!(postgres.settings["jit"], "off");
    assert_eq!(guest.ready_line, "POSTGRES READY");
    let binaries: Vec<_> = guest.binaries.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(binaries, ["vm-monitor", "neonvmd"]);
}

/// Requirement: N46
#[test]
fn a_small_recipe_gets_its_defaults() {
    let recipe = Recipe::parse("test", GOOD).unwrap();
    let guest = recipe.guest().unwrap();
    assert_eq!(
        (guest.hostname.as_str(), guest.ready_line.as_str()),
        ("guest", "READY")
    );
    assert!(guest.postgres.is_none() && guest.services.is_empty());
    assert_eq!(recipe.sha256, crate::digest::of_bytes(GOOD.as_bytes()));
}

/// Requirement: N46
#[test]
fn every_problem_is_reported_at_once() {
    let text = GOOD
        .replace("disk_mib = 256", "disk_mib = 3\nsize = 1")
        .replace("me/thing:1", "Me//thing")
        .replace("[\"busybox-static\"]", "[\"Busy Box\", 7]")
        .replace("cmdline = \"console=ttyS0\"", "cmdlin = \"x\"");
    let found = problems(&text);
    let expect = |part: &str| {
        assert!(
            found.iter().any(|p| p.contains(part)),
            "{part} not in {found:#?}"
        );
    };
    expect("name is \"Me//thing\"");
    expect("guest.disk_mib is 3: must be an integer from 64");
    expect("guest.size is unknown: the fields here are binaries, disk_mib");
    expect("debian.packages is an integer: must be a list of strings");
    expect("\"Busy Box\"");
    expect("guest.kernel.cmdline is missing");
    expect("guest.kernel.cmdlin is unknown");
    assert_eq!(found.len(), 7, "{found:#?}");
}

/// Requirement: N46
#[test]
fn services_need_known_users_absolute_programs_and_their_own_names() {
    let text = format!(
        "{GOOD}\n[[guest.services]]\nname = \"a\"\ncommand = [\"run\"]\n\
         [[guest.services]]\nname = \"a\"\ncommand = [\"/run\"]\nuser = \"ghost\"\n"
    );
    let found = problems(&text).join("\n");
    assert!(
        found.contains("guest.services[0].command is \"run\": must be an absolute path"),
        "{found}"
    );
    assert!(
        found.contains("guest.services.a runs as \"ghost\""),
        "{found}"
    );
    assert!(found.contains("guest.services has \"a\" twice"), "{found}");
}

/// Requirement: N46
#[test]
fn a_recipe_builds_exactly_one_thing() {
    let none = GOOD.split("[guest]").next().unwrap();
    assert!(
        problems(none)
            .join("")
            .contains("guest and runtime are both missing")
    );
    let both =
        format!("{GOOD}\n[runtime]\nqemu_at_least = 10\nprograms = [\"a\"]\nmodules = \"m\"\n");
    assert!(
        problems(&both)
            .join("")
            .contains("guest and runtime are both given")
    );
}

/// Requirement: N46
#[test]
fn paths_cannot_leave_the_tree() {
    for bad in ["/etc", "../x", "a//b", "a/./b"] {
        let text = format!("prune = [{bad:?}]\n{GOOD}");
        assert!(problems(&text).join("").contains("prune is"), "{bad}");
    }
    for bad in ["a/../b", "/abs", "A", "a:b:c", "", ".hidden", "a/"] {
        assert!(!is_image_name(bad), "{bad}");
    }
}

/// Requirement: N46
#[test]
fn unknown_names_and_bad_toml_are_reported() {
    let error = Recipe::load("bellows/postgres:99").unwrap_err().to_string();
    assert!(error.contains("bellows/postgres:15"), "{error}");
    let error = Recipe::parse("file.toml", "a = [").unwrap_err().to_string();
    assert!(
        error.contains("file.toml") && error.contains("line 1"),
        "{error}"
    );
}

/// Requirement: N46
#[test]
fn the_host_release_wins_else_the_last() {
    let mut debian = Recipe::load("bellows/qemu").unwrap().debian;
    debian.suites.insert(
        0,
        SuiteRecipe {
            name: "bookworm".into(),
            prefer: Some("bookworm-backports".into()),
        },
    );
    let pick = |host| debian.suite_for(host).unwrap().clone();
    assert_eq!(
        pick(Some("bookworm")).prefer.as_deref(),
        Some("bookworm-backports")
    );
    assert_eq!(pick(Some("trixie")).prefer, None);
    assert_eq!(pick(Some("forky")).name, "trixie");
    assert_eq!(pick(None).name, "trixie");
}

/// Debian 12's passt lets a guest reach the host's loopback addresses.
#[test]
fn qemu_image_takes_its_programs_from_debian_13_on_every_host() {
    let qemu = Recipe::load("bellows/qemu").unwrap();
    for host in [Some("bookworm"), Some("trixie"), None] {
        assert_eq!(qemu.debian.suite_for(host).unwrap().name, "trixie");
    }
}

proptest::proptest! {
    /// Requirement: N46. A damaged recipe is refused with a message that names a problem. It never
    /// panics.
    #[test]
    fn damaged_recipe_is_refused_with_a_message(
        number in 0..BUILTIN.len(),
        at in 0usize..4096,
        cut in 0usize..64,
        put in "[\\[\\]{}=\"'a-z0-9 .\\n-]{0,12}",
    ) {
        let text: Vec<char> = BUILTIN[number].chars().collect();
        let at = at.min(text.len());
        let end = (at + cut).min(text.len());
        let damaged: String = text[..at].iter().copied().chain(put.chars()).chain(text[end..].iter().copied()).collect();
        match Recipe::parse("damaged", &damaged) {
            Ok(recipe) => proptest::prop_assert!(is_image_name(&recipe.name)),
            Err(RecipeError::Invalid { problems, .. }) => proptest::prop_assert!(!problems.is_empty()),
            Err(error) => proptest::prop_assert!(error.to_string().contains("damaged")),
        }
    }

    /// Requirement: N46. Every valid name of an image is a path inside the cache.
    #[test]
    fn an_image_name_is_a_safe_path(name in "[a-z0-9./:_-]{1,24}") {
        if is_image_name(&name) {
            let path = Path::new("refs").join(&name);
            let safe = path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
            proptest::prop_assert!(safe && path.starts_with("refs") && path.to_string_lossy().len() == name.len() + 5);
        }
    }
}
