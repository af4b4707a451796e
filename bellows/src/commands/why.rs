//! `bellows why`: the last decision about a VM, in words.

use clap::Args;
use hyper::http::Method;
use telemetry::clock::Clock;

use crate::api::Kind;
use crate::cli::VmArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::get;
use crate::output::{Format, print_value};
use crate::terminal::out;
use crate::view::vm::VmView;

/// Why a VM has the size it has.
///
/// Prints the agent's last decision about it: what each signal asked for, what bounded the answer, which permit is held.
#[derive(Debug, Clone, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    pub(crate) vm: VmArgs,
    /// The decision in force at that time, from the journal (RFC 3339, such as 2026-11-21T20:00:00Z)
    #[arg(long, value_name = "TIME", value_parser = protocol::time::WallTime::parse)]
    at: Option<protocol::time::WallTime>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

pub(crate) async fn run(context: &Context, args: &WhyArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    if let Some(at) = args.at {
        return super::history::why_at(context, (namespace, name), at, args.output);
    }
    let api = context.api().await?;
    let object = api.get(Kind::Vm, namespace, name).await?;
    let pods = api.list(Kind::Pod, Some(namespace)).await?;
    // Without the agent there is no answer: this one must be there.
    context.admin(Method::GET, "/v1/status", None).await?;
    let mut views = get::vms(context, &[object], &pods, Clock::new().wall()).await;
    let view = views.remove(0);
    match args.output {
        Format::Json | Format::Yaml => print_value(args.output, &view)?,
        Format::Table | Format::Wide => {
            for line in lines(&view) {
                out(&line);
            }
        }
    }
    if view.decision.is_none() && view.autoscaled {
        return Err(Fail::not_so(format!(
            "the agent has made no decision about {namespace}/{name} yet"
        ))
        .rule("the agent takes a VM on once it is Running and has an address")
        .fix(format!(
            "wait until it runs: bellows get vms {name} -n {namespace}"
        )));
    }
    Ok(())
}

/// The answer in words.
fn lines(view: &VmView) -> Vec<String> {
    use crate::view::vm::{cores, memory};
    let now = |cpu: Option<u32>, mem: Option<u64>| {
        format!(
            "{} CPU / {}",
            cpu.map_or_else(|| "?".into(), cores),
            mem.map_or_else(|| "?".into(), memory)
        )
    };
    let mut lines = vec![format!(
        "{} has {}, should have {} CPU / {}, may have {} CPU / {} to {} CPU / {}.",
        view.key(),
        now(view.cpu_milli.now, view.memory_bytes.now),
        cores(view.cpu_milli.want),
        memory(view.memory_bytes.want),
        cores(view.cpu_milli.min),
        memory(view.memory_bytes.min),
        cores(view.cpu_milli.max),
        memory(view.memory_bytes.max),
    )];
    if let Some(problem) = &view.problem {
        lines.push(format!("Problem: {problem}."));
    }
    match &view.decision {
        Some(decision) => lines.extend(decision.in_words()),
        None if !view.autoscaled => lines.push(format!(
            "Nobody sizes it: it does not carry the label {}=true.",
            protocol::annotations::LABEL_ENABLED
        )),
        None => {}
    }
    if let Some(resize) = &view.last_resize {
        let state = if resize.complete {
            "took"
        } else {
            "is under way since"
        };
        lines.push(format!(
            "Its last resize ({}) began {} ago and {state} {} ms.",
            if resize.change.is_empty() {
                "sizes unknown"
            } else {
                &resize.change
            },
            crate::output::age(resize.age_s),
            crate::output::millis(resize.total_us),
        ));
    }
    lines
}
