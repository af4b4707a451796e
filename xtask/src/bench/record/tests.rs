use super::*;

const MACHINE: &str = r#"{"cpus":2,"mem":23.5,"kernel":"6.18.5","accel":"none"}"#;
const FIGURES: &str = r#"
    {"name":"rss","value":3.1416,"unit":"MiB","target":4,"better":"lower","met":true},
    {"name":"rate","value":14600.4,"unit":"1/s","target":20000,"better":"higher","met":false},
    {"name":"ratio","value":null,"unit":"x","target":1.2,"better":"lower","met":false},
    {"name":"runs","value":50,"unit":"","target":null,"better":"higher","met":null}"#;

const SECTION: &str = "\
## 2026-11-28 09:05 UTC

* command: `cargo xtask bench monitor --repeats 20`
* commit: `1a2b3c4d+`
* machine: AMD EPYC, 2 cores, 23.5 GiB
* kernel: 6.18.5, no guest

| figure | target | value | verdict |
|---|---|---|---|
| monitor: rss | ≤ 4 MiB | 3.142 MiB | met |
| monitor: rate | ≥ 20000 1/s | 14600 1/s | missed |
| monitor: ratio | ≤ 1.2 x | none | missed |
| monitor: runs | – | 50 | no target |
";

fn report(machine: &str, figures: &str) -> Report {
    let text = format!(r#"{{"bench":"x","machine":{machine},"figures":[{figures}]}}"#);
    Report::parse(&text).expect("a report")
}

fn run(started: &str, arguments: &[&str]) -> Run {
    Run {
        started: started.parse().expect("a time"),
        commit: "1a2b3c4d+".to_owned(),
        processor: "AMD EPYC".to_owned(),
        arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
    }
}

fn of_monitor() -> Run {
    run("2026-11-28T09:05:59Z", &["monitor", "--repeats", "20"])
}

fn figures<'a>(label: &'a str, report: &'a Report) -> Part<'a> {
    let outcome = Outcome::Figures(report);
    Part { label, outcome }
}

fn text_of(folder: &Path, page: &str) -> String {
    std::fs::read_to_string(folder.join(page)).expect("the page")
}

#[test]
fn section_has_commit_machine_and_a_row_for_each_figure() {
    let report = report(MACHINE, FIGURES);
    let section = of_monitor().section(&[figures("monitor", &report)]);
    assert_eq!(section.expect("a machine").as_deref(), Some(SECTION));
}

#[test]
fn section_of_all_has_rows_of_each_benchmark_and_names_those_without_figures() {
    let monitor = report(MACHINE, r#"{"name":"rss","value":3,"unit":"MiB"}"#);
    let with_guest = r#"{"cpus":2,"mem":23.5,"kernel":"6.18.5","accel":"tcg"}"#;
    let oom = report(with_guest, r#"{"name":"kills","value":0,"unit":""}"#);
    let without = |label, outcome| Part { label, outcome };
    let parts = [
        figures("monitor", &monitor),
        without("agent", Outcome::Failed),
        figures("oom", &oom),
        without("walls", Outcome::LeftOut("needs root")),
    ];
    let section = of_monitor().section(&parts).expect("machines");
    let section = section.expect("figures");
    let (facts, rows) = section.split_once("\n\n|").expect("a table");
    let end = "* kernel: 6.18.5, TCG\n* failed: agent\n* left out: walls (needs root)";
    assert!(facts.ends_with(end), "{facts}");
    let end = "| monitor: rss | – | 3 MiB | no target |\n| oom: kills | – | 0 | no target |\n";
    assert!(rows.ends_with(end), "{rows}");
}

#[test]
fn run_without_figures_has_no_section() {
    let outcome = Outcome::Failed;
    let label = "agent";
    let section = of_monitor().section(&[Part { label, outcome }]);
    assert_eq!(section.expect("no error"), None);
}

#[test]
fn report_without_a_machine_is_an_error() {
    let report = report("null", FIGURES);
    assert!(of_monitor().section(&[figures("x", &report)]).is_err());
}

#[test]
fn section_names_no_path() {
    let words = ["agent", "--", "--bin", "/home/a/bin", "--other=b/c"];
    let command = run("2026-11-28T09:05:59Z", &words).command();
    assert_eq!(command, "cargo xtask bench agent -- --bin … …");
}

#[test]
fn earlier_sections_stay_byte_for_byte() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let earlier = "# Measurements\n\n## Runs\r\n\n| a | b |  \n⁷ no newline at the end";
    std::fs::write(folder.join("2026-11.md"), earlier).expect("a page");
    let page = of_monitor().append(folder, SECTION).expect("appended");
    assert_eq!(page, "2026-11.md");
    let once = format!("{earlier}\n\n{SECTION}");
    assert_eq!(text_of(folder, &page), once);
    let later = run("2026-11-28T23:59:59Z", &[]);
    later.append(folder, "## Second\n").expect("appended");
    assert_eq!(text_of(folder, &page), format!("{once}\n## Second\n"));
}

#[test]
fn new_month_gets_a_page_with_a_head() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("measurements");
    of_monitor().append(&folder, SECTION).expect("appended");
    let november = text_of(&folder, "2026-11.md");
    let next = run("2026-12-01T00:00:00Z", &[]);
    let page = next.append(&folder, SECTION).expect("appended");
    assert_eq!(page, "2026-12.md");
    let text = text_of(&folder, &page);
    assert!(text.starts_with("# Measurements of December 2026\n\n["));
    assert!(text.ends_with(&format!("a section for each run.\n\n{SECTION}")));
    assert_eq!(text_of(&folder, "2026-11.md"), november);
    let left = std::fs::read_dir(&folder).expect("the folder").count();
    assert_eq!(left, 2, "a draft was left behind");
}

#[test]
fn commit_is_marked_when_the_checkout_has_changes_outside_of_the_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let git = |arguments: &[&str]| {
        let settings = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let mut command = Command::new("git");
        command.current_dir(folder).args(settings).args(arguments);
        shell::output(&mut command).expect("git runs")
    };
    git(&["init", "--quiet"]);
    git(&["commit", "--quiet", "--allow-empty", "--message", "x"]);
    let hash = git(&["rev-parse", "HEAD"]);
    of_monitor()
        .append(&folder.join(FOLDER), SECTION)
        .expect("appended");
    let clean = commit(folder).expect("a commit");
    assert!(hash.starts_with(&clean), "{clean}");
    std::fs::write(folder.join("new.rs"), "").expect("written");
    let changed = commit(folder).expect("a commit");
    assert_eq!(changed, format!("{clean}+"));
}

#[test]
fn values_have_four_digits_and_whole_numbers_all() {
    let shown = |value| quantity(value, "ms");
    assert_eq!(shown(0.004_712_3), "0.004712 ms");
    assert_eq!(shown(1.2), "1.2 ms");
    assert_eq!(shown(99.996), "100 ms");
    assert_eq!(shown(0.0), "0 ms");
    assert_eq!(shown(-213.04), "-213 ms");
    assert_eq!(shown(4_194_304.0), "4194304 ms");
    assert_eq!(quantity(3.0, ""), "3");
}

#[test]
fn machine_is_named_by_its_processor_and_what_runs_guests() {
    let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\n\nmodel name\t: other\n";
    assert_eq!(processor(cpuinfo), "AMD EPYC");
    assert_eq!(processor(""), std::env::consts::ARCH);
    let of = |accels: &[&str]| {
        let machine = |accel: &&str| {
            let text = MACHINE.replace("none", accel);
            report(&text, "").machine().expect("a machine")
        };
        acceleration(&accels.iter().map(machine).collect::<Vec<_>>())
    };
    assert_eq!(of(&["none", "kvm", ""]), "KVM");
    assert_eq!(of(&["tcg", "kvm"]), "KVM and TCG");
    assert_eq!(of(&["none", ""]), "no guest");
}
