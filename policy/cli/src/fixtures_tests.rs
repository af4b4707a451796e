use super::*;

fn read(text: &str) -> Fixtures {
    Fixtures::read(text).unwrap_or_else(|error| panic!("{error:?}"))
}

#[test]
fn question_is_the_plain_one_with_what_the_fixture_says() {
    let fixtures = read(
        r#"
params = { headroom = 1.5 }
series = ["lfc_hits"]
feeds = ["jobs"]

[[fixture]]
name = "a"
input.vm = { use_cu = 3, labels = { app = "pg" } }
input.feeds.jobs.value = 4
past = { lfc_hits = [1, 2], used = [5e9, 6e9, 7e9] }
answer = { hold = true, reason = "x" }

[[fixture]]
name = "b"
every = 60
past."feed:jobs" = [1, 2]
expect = { cu = { min = 2 }, reason = ["x", "y"] }
"#,
    );
    let [first, second] = &fixtures.all[..] else {
        panic!("{fixtures:?}");
    };
    let AnyInput::Vm(input) = &first.question.input else {
        panic!("{first:?}");
    };
    assert_eq!((input.vm.use_cu, input.vm.max_cu), (3.0, 4.0));
    assert_eq!((input.vm.cpu_m, input.vm.permit_cu), (3000.0, Some(3.0)));
    assert_eq!(input.params["headroom"], 1.5);
    assert_eq!(input.feeds["jobs"].value, 4.0);
    let times: Vec<f64> = first.question.samples.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [3590.0, 3595.0, 3600.0]);
    let values = |index: usize| &first.question.samples[index].1;
    assert_eq!(values(0)["used"], 5e9);
    assert_eq!((values(0).len(), values(2).len()), (1, 2));
    assert_eq!(second.question.samples[0].0, 3540.0);
    assert_eq!(second.line, 14);
    assert!(matches!(second.expected, Expected::Properties(_)));
}

#[test]
fn malformed_file_is_named_with_line_and_rule() {
    for (text, line, rule) in [
        ("[[fixture]]\nname = \"a\"\nanswr = 1", 3, "answr"),
        ("params = { a = true }", 1, "bool"),
        ("[[fixture]]\nname = \"a\"\ninput.vm.size = 1", 2, "size"),
        (
            "\n[[fixture]]\nname = \"a\"\npast.pressure = [1]",
            3,
            "pressure",
        ),
        (
            "[[fixture]]\nname = \"a\"\nanswer = { cu = 1.5, reason = \"x\" }",
            2,
            "cu",
        ),
        (
            "[[fixture]]\nname = \"a\"\nfault = \"steps\"\nexpect.cu = 1",
            2,
            "one of",
        ),
        ("[[fixture]]\nname = \"a\"\nevery = 0", 2, "every"),
    ] {
        let error = Fixtures::read(text).expect_err(text);
        assert_eq!(error.line, line, "{text}: {error:?}");
        assert!(error.rule.contains(rule), "{text}: {error:?}");
    }
}

#[test]
fn bounds_include_their_ends() {
    let between = |min, max| Bounds::Between(Between { min, max });
    assert!(between(Some(2.0), Some(4.0)).hold(2.0));
    assert!(between(Some(2.0), None).hold(1e9));
    assert!(!between(None, Some(4.0)).hold(4.1));
    assert!(Bounds::Is(1.234).hold(1.234_4) && !Bounds::Is(1.0).hold(1.1));
}
