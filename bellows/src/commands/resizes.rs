//! `bellows resizes`: one row per resize, with the milliseconds of each stage.

use clap::Args;
use daemon_kit::clock::Clock;
use hyper::http::Method;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::resize::Resize;
use crate::terminal::err;
use crate::view::resize::table;

/// The last resizes and where their time went.
///
/// Times are milliseconds. TOTAL runs from the begin of the first stage to the end of the last;
/// stages may overlap or wait for one another, so it is not their sum.
#[derive(Debug, Clone, Args)]
pub(crate) struct ResizesArgs {
    /// Those of one VM only
    #[arg(long, value_name = "NAMESPACE/NAME")]
    vm: Option<String>,
    /// At most this many, newest last
    #[arg(long, default_value_t = 20, value_name = "N")]
    last: usize,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

pub(crate) async fn run(context: &Context, args: &ResizesArgs) -> Outcome {
    let answer = context.admin(Method::GET, "/v1/resizes", None).await?;
    let mut rows: Vec<Resize> = serde_json::from_value(answer["resizes"].clone())
        .map_err(|error| Fail::bug(format!("the admin API answered no resizes: {error}")))?;
    if let Some(vm) = &args.vm {
        let key = if vm.contains('/') {
            vm.clone()
        } else {
            format!("default/{vm}")
        };
        rows.retain(|row| row.vm == key);
    }
    rows.drain(..rows.len().saturating_sub(args.last));
    match args.output {
        Format::Json | Format::Yaml => {
            print_value(args.output, &serde_json::json!({"resizes": rows}))
        }
        Format::Table | Format::Wide => {
            if rows.is_empty() {
                err("no resize yet");
            } else {
                table(&rows, Clock::new().wall()).print(context.paint());
            }
            Ok(())
        }
    }
}
