//! Rounds of the core of policies of sets: on a simulated clock, with made-up answers.

#[path = "set_rounds/gate.rs"]
mod gate;
#[path = "set_rounds/lines.rs"]
mod lines;

use policy_contract::sets::SetAnswer;
use policy_contract::{Fault, Role, Spec};
use policy_controller::core::sets::{
    Action, DENIED_FOR, End, Event, Objects, Question, SetsCore, Values, WishChange, World,
};
use protocol::core::Core as _;
use protocol::policy::{CapacityWishSpec, KEY_POLICY, LABEL_SET, ScalingPolicyStatus};
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::Resources;
use serde_json::{Value, json};

const UNIT: Resources = Resources::new(1_000, 1 << 30);
const SECOND: u64 = 1_000_000;

/// Objects, a core, and answers by role.
struct Rig {
    core: SetsCore,
    now: Timestamp,
    objects: Objects,
    live: End,
    shadow: End,
    /// Values of each page.
    fed: Values,
    questions: Vec<Question>,
}

fn set(name: &str, replicas: u32) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("u-{name}"),
            "annotations": {KEY_POLICY: "web"}},
        "spec": {"replicas": replicas, "rates": {"grow": 1.0, "decline": 0.5},
            "template": {"spec": {"guest": {
                "cpus": {"min": 1, "use": 1, "max": 1},
                "memorySlotSize": "1Gi", "memorySlots": {"min": 1, "use": 1, "max": 1},
                "rootDisk": {"image": "a"}}}}},
        "status": {"replicas": replicas, "readyReplicas": replicas, "version": 1},
    })
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {
        "allocatable": {"cpu": "8", "memory": "64Gi"},
        "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn member(set: &str, ordinal: u32, node: &str) -> Value {
    json!({
        "metadata": {"name": format!("{set}-{ordinal}-x"), "namespace": "default",
            "labels": {LABEL_SET: set, "vm.neon.tech/name": format!("{set}-{ordinal}")},
            "annotations": {"internal.autoscaling.neon.tech/resources-approved":
                r#"{"vCPUs":1,"mem":"1Gi"}"#}},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIP": format!("10.0.0.{ordinal}")},
    })
}

fn policy(status: &ScalingPolicyStatus) -> Value {
    json!({
        "metadata": {"name": "web"},
        "spec": {"scope": "set", "source": "return 1",
            "feeds": [{"name": "jobs", "port": 9200, "metric": "ci_jobs"},
                      {"name": "other", "port": 22, "metric": "x"}]},
        "status": status,
    })
}

fn digest_of(policy: &Value) -> String {
    let spec = protocol::policy::ScalingPolicySpec::of_object(policy).expect("a spec");
    Spec::from(spec).digest().to_string()
}

impl Rig {
    /// A set `web` of two members whose policy decides, or is a candidate.
    fn new(role: Role) -> Self {
        let mut status = ScalingPolicyStatus::default();
        let mut object = policy(&status);
        if role == Role::Live {
            status.promote(&digest_of(&object), WallTime(1));
            object = policy(&status);
        }
        let nothing = End::Answer(SetAnswer::default());
        Self {
            core: SetsCore::new(Timestamp(0), UNIT, vec![9200]),
            now: Timestamp(0),
            objects: Objects {
                policies: vec![object],
                sets: vec![set("web", 2)],
                nodes: vec![node("n1")],
                pods: (0..2).map(|ordinal| member("web", ordinal, "n1")).collect(),
                ..Objects::default()
            },
            live: nothing.clone(),
            shadow: nothing,
            fed: Values::new(),
            questions: Vec::new(),
        }
    }

    fn answer(&mut self, value: &Value) {
        let mut facts = policy_contract::SetInput::sample().facts();
        for set in &self.objects.sets {
            let name = set["metadata"]["name"].as_str().expect("a name");
            let mut fact = facts["web"].clone();
            fact.versions = [1, 2].into();
            fact.commands = ["drain".to_owned()].into();
            facts.insert(name.to_owned(), fact);
        }
        let answer = SetAnswer::read(value, &facts).expect("an answer");
        self.live = End::Answer(answer.clone());
        self.shadow = End::Answer(answer);
    }

    /// Runs until the core sleeps. Returns what it changes; changes of sets are carried out.
    fn run(&mut self) -> Vec<Action> {
        let mut changes = Vec::new();
        while let Some(action) = self.core.poll_action(self.now) {
            let event = match action {
                Action::Read => {
                    let wall = WallTime(i64::try_from(self.now.0).expect("small"));
                    Event::Read(Box::new(World::read(&self.objects, wall)))
                }
                Action::ReadPages(_) => Event::Fed(self.fed.clone()),
                Action::Ask(question) => {
                    let (n, role) = (question.n, question.role);
                    self.questions.push(*question);
                    let end = match role {
                        Role::Live => self.live.clone(),
                        Role::Shadow => self.shadow.clone(),
                    };
                    Event::Ended { n, end }
                }
                change => {
                    self.carry_out(&change);
                    changes.push(change);
                    continue;
                }
            };
            self.core.handle(self.now, event);
        }
        changes
    }

    fn carry_out(&mut self, change: &Action) {
        match change {
            Action::ChangeSet(patch) => {
                let mut sets = self.objects.sets.iter_mut();
                let set = sets.find(|set| set["metadata"]["name"] == *patch.name);
                let set = set.expect("the set");
                for operation in patch.operations.as_array().expect("operations") {
                    let path = operation["path"].as_str().expect("a path");
                    if operation["op"] == "test" {
                        assert_eq!(set.pointer(path), Some(&operation["value"]), "{path}");
                    } else {
                        let member = path.strip_prefix("/spec/").expect("of the spec");
                        set["spec"][member] = operation["value"].clone();
                    }
                }
            }
            Action::ChangeWishes(changes) => {
                for change in changes {
                    let (WishChange::Put(name, _) | WishChange::Drop(name)) = change;
                    self.objects
                        .wishes
                        .retain(|wish| wish["metadata"]["name"] != *name);
                    if let WishChange::Put(name, spec) = change {
                        let wish = json!({"metadata": {"name": name}, "spec": spec});
                        self.objects.wishes.push(wish);
                    }
                }
            }
            _ => {}
        }
    }

    /// Goes to the core's deadline.
    fn next(&mut self) -> Vec<Action> {
        self.now = self.core.poll_deadline().expect("a deadline");
        self.run()
    }

    fn count(&self) -> u64 {
        self.objects.sets[0]["spec"]["replicas"]
            .as_u64()
            .expect("a count")
    }

    fn deny_growth(&mut self, is_denied: bool) {
        let size = if is_denied { 2 } else { 1 };
        for pod in &mut self.objects.pods {
            pod["metadata"]["annotations"]["internal.autoscaling.neon.tech/resources-requested"] =
                format!(r#"{{"vCPUs":{size},"mem":"1Gi"}}"#).into();
        }
    }

    fn wish(&self) -> Option<CapacityWishSpec> {
        let wish = self.objects.wishes.first()?;
        serde_json::from_value(wish["spec"].clone()).ok()
    }
}

fn set_changes(actions: &[Action]) -> usize {
    let changes = actions.iter();
    changes
        .filter(|action| matches!(action, Action::ChangeSet(_)))
        .count()
}

/// Requirement: V08
#[test]
fn v08_sets_are_asked_about_every_10_s_without_drift() {
    let mut rig = Rig::new(Role::Live);
    rig.run();
    for round in 1..=360_u64 {
        // A timer fires late, by up to a second.
        let due = rig.core.poll_deadline().expect("a deadline");
        assert_eq!(due, Timestamp(round * 10 * SECOND));
        rig.now = due + Span(round * 7919 % SECOND);
        let before = rig.questions.len();
        rig.run();
        assert!(rig.questions.len() > before);
    }
    // A round that took too long is left out, and the next ones keep their times.
    rig.now = rig.now + Span(25 * SECOND);
    rig.run();
    assert_eq!(rig.core.poll_deadline(), Some(Timestamp(3_630 * SECOND)));
}

/// Requirement: V13
#[test]
fn v13_counts_pass_the_rates_of_the_set() {
    let mut rig = Rig::new(Role::Live);
    rig.objects.nodes = (0..9).map(|n| node(&format!("n{n}"))).collect();
    rig.answer(&json!({"sets": {"web": {"count": 40}}}));
    let mut counts = Vec::new();
    rig.run();
    for _ in 0..4 {
        counts.push(rig.count());
        rig.next();
    }
    assert_eq!(counts, [12, 22, 32, 40], "ten in 10 s");
    rig.answer(&json!({"sets": {"web": {"count": 0}}}));
    counts.clear();
    for _ in 0..3 {
        rig.next();
        counts.push(rig.count());
    }
    assert_eq!(counts, [35, 30, 25], "five in 10 s");
}

/// Requirement: V06
#[test]
fn v06_candidate_of_sets_changes_none() {
    let mut rig = Rig::new(Role::Shadow);
    rig.answer(&json!({"sets": {"web": {"count": 5}}, "nodes": {"want": 9, "why": "load"}}));
    let mut actions = rig.run();
    actions.extend(rig.next());
    assert!(rig.questions.iter().all(|one| one.role == Role::Shadow));
    let reports: Vec<_> = actions
        .into_iter()
        .filter(|action| !matches!(action, Action::Record(_)))
        .map(|action| match action {
            Action::Report { reports, .. } => reports["shadow"].clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let said = &reports[0].sets["default/web"];
    assert_eq!((said.has, said.wants), (2, Some(5)));
}

/// Requirement: V33
#[test]
fn v33_fault_keeps_each_set_as_it_is() {
    let mut rig = Rig::new(Role::Live);
    rig.answer(&json!({"nodes": {"want": 5, "why": "load"}}));
    rig.run();
    rig.live = End::Fault(Fault::Output, "sets.web.count: 2.5".into());
    for row in 1..=3 {
        let actions = rig.next();
        assert_eq!(set_changes(&actions), 0, "{actions:?}");
        let reports = rig.core.version_reports();
        assert_eq!(reports[0].alarms.faults_in_a_row, row);
    }
    assert_eq!(rig.wish().map(|wish| wish.nodes), Some(5), "the wish stays");
    rig.live = End::NotAsked("bellows-policy is missing".into());
    assert_eq!(set_changes(&rig.next()), 0);
    assert_eq!(rig.core.version_reports()[0].alarms.faults_in_a_row, 3);
}

/// Requirement: V33
#[test]
fn v33_nothing_is_asked_without_a_node() {
    let mut rig = Rig::new(Role::Live);
    rig.objects.nodes[0]["spec"] = json!({"unschedulable": true});
    rig.answer(&json!({"sets": {"web": {"count": 40}}}));
    assert_eq!(set_changes(&rig.run()), 0);
    assert!(rig.questions.is_empty());
}

/// Requirement: V14
#[test]
fn v14_counts_stay_within_what_the_sets_may_have() {
    let mut rig = Rig::new(Role::Live);
    rig.objects.sets[0]["spec"]["rates"]["grow"] = json!(100.0);
    // A pod of another origin has two of the eight units.
    let mut other = member("other", 0, "n1");
    other["metadata"]["labels"] = json!({});
    other["metadata"]["annotations"] = json!({});
    let requests = json!({"requests": {"cpu": "2", "memory": "1Gi"}});
    other["spec"]["containers"] = json!([{"name": "a", "resources": requests}]);
    rig.objects.pods.push(other);
    rig.answer(&json!({"sets": {"web": {"count": 40}}}));
    rig.run();
    assert_eq!(rig.count(), 6);
    let asked = &rig.questions[0].input;
    assert_eq!((asked.cluster.cu, asked.cluster.free_cu), (8, 4));
    assert_eq!(asked.cluster.sets_cu, 6);
    rig.objects.policies[0]["spec"]["limits"] = json!({"maxUnits": 3});
    rig.run();
    rig.objects.sets[0]["spec"]["rates"]["decline"] = json!(100.0);
    rig.next();
    assert_eq!(rig.count(), 3, "the limit of the policy");
}

/// Requirement: V33, V34
#[test]
fn v34_version_command_and_values_are_chosen_from_the_sets_lists() {
    let mut rig = Rig::new(Role::Live);
    rig.answer(&json!({
        "sets": {"web": {"count": 2, "version": 2, "command": "drain"}},
        "kv": {"web": {"mode": "fast"}},
    }));
    assert_eq!(set_changes(&rig.run()), 1);
    let spec = rig.objects.sets[0]["spec"].clone();
    assert_eq!(spec["version"], 2);
    assert_eq!(
        spec["chosen"],
        json!({"command": "drain", "kv": {"mode": "fast"}})
    );
    assert_eq!(set_changes(&rig.next()), 0, "it is so already");
    // An upgrade that halted is for people.
    rig.objects.sets[0]["status"]["upgrade"] = json!({"to": 2, "halted": "web-0 has ended"});
    rig.answer(&json!({"sets": {"web": {"count": 2, "version": 1, "command": "drain"}}}));
    rig.next();
    assert_eq!(rig.objects.sets[0]["spec"]["version"], 2);
}

/// Requirement: V10
#[test]
fn sums_of_feeds_come_from_allowed_ports_alone() {
    let mut rig = Rig::new(Role::Live);
    let page = |value: f64| [("ci_jobs".to_owned(), value)].into();
    rig.fed = [
        (("10.0.0.0".to_owned(), 9200), page(3.0)),
        (("10.0.0.1".to_owned(), 9200), page(4.5)),
    ]
    .into();
    rig.run();
    let asked = &rig.questions[0];
    let sum = asked.input.sets["web"].feeds["jobs"];
    assert_eq!((sum.sum, sum.max, sum.members), (7.5, 4.5, 2));
    assert_eq!(asked.input.feeds.len(), 1, "port 22 is not allowed");
    assert_eq!(asked.history.last("feed:jobs", 0.0), Some(7.5));
}

/// Requirement: V09
#[test]
fn v09_last_answer_is_in_the_next_question() {
    let mut rig = Rig::new(Role::Live);
    rig.answer(&json!({"sets": {"web": {"count": 3}}}));
    rig.run();
    assert_eq!(rig.questions[0].input.old, None);
    rig.next();
    let last = rig.questions.last().expect("a question");
    let old = last.input.old.as_ref().expect("an answer");
    assert_eq!(old.sets, json!({"web": {"count": 3}}));
    assert!((old.age_s - 10.0).abs() < 1e-9 || last.is_fresh);
}

/// Requirement: V39
#[test]
fn v39_wish_of_a_policy_is_an_object_until_it_is_not_wanted() {
    let mut rig = Rig::new(Role::Live);
    rig.answer(&json!({"nodes": {"want": 5, "why": "load"}}));
    rig.run();
    let wish = rig.wish().expect("a wish");
    assert_eq!(
        (wish.nodes, &*wish.why, wish.since),
        (5, "load", WallTime(0))
    );
    rig.answer(&json!({"nodes": {"want": 5, "why": "queue"}}));
    rig.next();
    let wish = rig.wish().expect("a wish");
    assert_eq!(
        (&*wish.why, wish.since),
        ("queue", WallTime(0)),
        "the number is as old"
    );
    rig.answer(&json!({}));
    rig.next();
    assert_eq!(rig.wish(), None);
}

/// Requirement: V39
#[test]
fn v39_growth_denied_on_every_node_for_ten_minutes_asks_for_one_more() {
    let mut rig = Rig::new(Role::Shadow);
    rig.objects.nodes.push(node("n2"));
    rig.deny_growth(true);
    for _ in 0..70 {
        rig.next();
    }
    assert_eq!(rig.wish(), None, "n2 denies nothing");
    rig.objects.pods[1]["spec"]["nodeName"] = json!("n2");
    let begin = rig.now;
    rig.next();
    while rig.wish().is_none() {
        rig.next();
    }
    let waited = rig.now.since(begin);
    assert_eq!(
        waited,
        Span(DENIED_FOR.0 + 10 * SECOND),
        "from the first look"
    );
    let wish = rig.wish().expect("a wish");
    assert_eq!((wish.nodes, &*wish.why), (3, "growth_denied"));
    rig.deny_growth(false);
    for _ in 0..60 {
        rig.next();
    }
    assert!(rig.wish().is_some(), "it stays for ten minutes");
    rig.next();
    assert_eq!(rig.wish(), None);
}
