//! The page of an order: what it will do, to what, and the form.

use askama::Template;

use super::set::{OrderQuery, SetForm};
use super::target::{Drain, SetStep, Setting, Staged, Target};
use crate::commands::policy::state::{candidate_of, sentence};
use crate::view::units::{cores, memory};
use crate::view::vm::VmView;
use crate::web::forms::Fields;
use crate::web::frame::{Frame, fail_lines};
use crate::web::snapshot::Snapshot;

/// Most VMs that a plan names.
const PLANNED_VMS: usize = 20;

/// A field of one line.
#[derive(Debug)]
struct Input {
    name: &'static str,
    label: &'static str,
    value: String,
}

/// A choice of one of several.
#[derive(Debug)]
struct Choice {
    value: &'static str,
    label: &'static str,
    is_chosen: bool,
}

/// The page of a form.
#[derive(Debug, Template)]
#[template(path = "order.html", whitespace = "minimize")]
pub(crate) struct OrderPage {
    pub(super) frame: Frame,
    /// What the order does, and to what.
    plan: Vec<String>,
    /// VMs that it is about.
    vms: Vec<String>,
    vms_left: usize,
    inputs: Vec<Input>,
    /// Asks for what the plan depends on, before there is one.
    question: Option<Input>,
    /// Further members of the form that the person does not see.
    hidden: Vec<(&'static str, String)>,
    choices: Vec<Choice>,
    /// Label of the button. Empty if the order cannot be given.
    submit: &'static str,
    /// Where the form is sent.
    action: String,
    back: String,
    fields: Fields,
    /// Version of the policy that the person sees.
    seen: String,
}

impl OrderPage {
    pub(crate) fn new(
        state: &Snapshot,
        target: &Target,
        (action, query): (String, &OrderQuery),
        fields: Fields,
    ) -> Self {
        let mut page = Self {
            frame: Frame::new(target.shown(), "", state),
            plan: Vec::new(),
            vms: Vec::new(),
            vms_left: 0,
            inputs: Vec::new(),
            question: None,
            hidden: Vec::new(),
            choices: Vec::new(),
            submit: "",
            back: target.page(),
            action,
            fields,
            seen: String::new(),
        };
        match target {
            Target::Policy { name, order } => page.of_policy(state, name, *order),
            Target::Node { name, order } => page.of_node(state, name, *order),
            Target::Vm {
                namespace,
                name,
                setting,
            } => {
                let key = format!("{namespace}/{name}");
                if let Some(vm) = state.vm(&key) {
                    page.of_vm(state, vm, *setting);
                }
            }
            Target::Set {
                namespace,
                name,
                step,
            } => {
                if let Some(set) = state.set(&format!("{namespace}/{name}")) {
                    page.of_set(SetForm::new(set, *step, query), *step, query);
                }
            }
        }
        page
    }

    fn of_policy(&mut self, state: &Snapshot, name: &str, order: Staged) {
        self.frame.section = "/policies";
        self.frame.title = format!("{}: {name}", order.title());
        self.submit = order.title();
        if let Some(object) = state.policy(name) {
            self.plan.push(format!("Now {}.", sentence(object)));
            if order == Staged::Promote {
                self.seen = candidate_of(object).unwrap_or_default();
            }
        }
        self.plan.push(order.effect().to_owned());
        let vms = state.agents.vms(name);
        self.vms_left = vms.len().saturating_sub(PLANNED_VMS);
        let names = vms.into_iter().map(|(vm, ..)| vm);
        self.vms = names.take(PLANNED_VMS).collect();
        self.plan.push(match self.vms.len() + self.vms_left {
            0 => "No VM has the policy now.".to_owned(),
            1 => "One VM has the policy:".to_owned(),
            count => format!("{count} VMs have the policy:"),
        });
    }

    fn of_node(&mut self, state: &Snapshot, name: &str, order: Drain) {
        self.frame.section = "/nodes";
        match (order, state.drain_plan(name)) {
            (Drain::End, _) => {
                self.frame.title = format!("End the drain of {name}");
                self.submit = "Let VMs come again";
                self.plan
                    .push("VMs that moved away stay where they are.".into());
            }
            (Drain::Begin, Ok(plan)) => {
                self.frame.title = format!("Drain {name}");
                self.submit = "Drain the node";
                self.plan = plan.sentences(name);
                let moves = plan.moves.iter().map(|(space, vm)| format!("{space}/{vm}"));
                self.vms = moves.take(PLANNED_VMS).collect();
                self.vms_left = plan.moves.len().saturating_sub(PLANNED_VMS);
            }
            (Drain::Begin, Err(refused)) => {
                self.frame.title = format!("Drain {name}");
                self.plan = fail_lines(&refused);
            }
        }
    }

    fn of_set(&mut self, form: SetForm, step: SetStep, query: &OrderQuery) {
        self.frame.section = "/sets";
        self.frame.title = form.title;
        if step == SetStep::Scale {
            self.question = Some(Input {
                name: "count",
                label: "Number of members",
                value: form.seen.to_string(),
            });
        }
        match form.plan {
            None => {}
            Some(Err(refused)) => self.plan = fail_lines(&refused),
            Some(Ok(plan)) => {
                self.question = None;
                self.submit = form.submit;
                self.plan = plan.sentences;
                self.vms_left = plan.members.len().saturating_sub(PLANNED_VMS);
                self.vms = plan.members;
                self.vms.truncate(PLANNED_VMS);
                self.hidden.push(("shown", form.seen.to_string()));
                if step == SetStep::Scale {
                    self.hidden.push(("count", query.count.clone()));
                }
            }
        }
    }

    fn of_vm(&mut self, state: &Snapshot, vm: &VmView, setting: Setting) {
        let key = vm.key();
        let settings = state.settings(&key);
        self.frame.section = "/vms";
        match setting {
            Setting::Bounds => {
                self.frame.title = format!("Bounds of {key}");
                self.submit = "Set the bounds";
                self.plan.push(
                    "The agent keeps the size between the bounds. CPU is in cores, such as 0.25 or \
                     250m; memory such as 2Gi, a multiple of the VM's slots. Four empty fields give \
                     the bounds back to the VM's spec."
                        .into(),
                );
                let input = |name, label, value| Input { name, label, value };
                let (cpu, mem) = (&vm.cpu_milli, &vm.memory_bytes);
                self.inputs = vec![
                    input("cpu_min", "Least CPU", cores(cpu.min)),
                    input("cpu_max", "Most CPU", cores(cpu.max)),
                    input("memory_min", "Least memory", exact(mem.min)),
                    input("memory_max", "Most memory", exact(mem.max)),
                ];
            }
            Setting::Mode => {
                self.frame.title = format!("Mode of {key}");
                self.submit = "Set the mode";
                self.plan.push("The mode says which changes the agent makes. It decides and records in every mode.".into());
                let chosen = settings.mode.unwrap_or_default();
                let choice = |(value, label)| Choice {
                    value,
                    label,
                    is_chosen: value == chosen,
                };
                self.choices = MODES.map(choice).into();
            }
        }
    }
}

const MODES: [(&str, &str); 4] = [
    ("", "that of its namespace or node"),
    ("observe", "observe: changes nothing"),
    ("grow", "grow: grows it, never shrinks it"),
    ("full", "full: grows and shrinks it"),
];

/// Memory that reads back as the same number of bytes.
fn exact(bytes: u64) -> String {
    let shown = memory(bytes);
    let read: Result<protocol::quantity::Quantity, _> = shown.parse();
    if read.is_ok_and(|read| read.as_u64() == Some(bytes)) {
        shown
    } else {
        protocol::quantity::Quantity::from_bytes(bytes).to_string()
    }
}
