//! Times of rollouts: a pass of the engine over many guests, and whole rollouts by the driver
//! before the shipped API server. Runners and pages are played over sockets.
//!
//! Prints a JSON object; `cargo xtask bench fleet` shows it with targets. `BELLOWS_BENCH_GUESTS`
//! sets the number of guests.

#[path = "rollouts/driver.rs"]
mod driver;
#[path = "rollouts/engine.rs"]
mod engine;
#[path = "rollouts/objects.rs"]
mod objects;
#[path = "rollouts/played.rs"]
mod played;
#[path = "rollouts/turns.rs"]
mod turns;
#[path = "rollouts/whole.rs"]
mod whole;

/// Guests of a rollout.
const GUESTS: usize = 10_000;

#[expect(clippy::print_stdout, reason = "the figures are its output")]
fn main() {
    driver::run_if_asked();
    let guests = std::env::var("BELLOWS_BENCH_GUESTS");
    let guests = guests.map_or(GUESTS, |text| text.parse().expect("a number of guests"));
    let mut figures = engine::figures(guests);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(played::serve_page());
    figures.extend(runtime.block_on(turns::figures()));
    figures.extend(runtime.block_on(whole::figures(guests)));
    println!("{}", serde_json::Value::Object(figures));
}
