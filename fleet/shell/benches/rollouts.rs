//! Times of rollouts: a pass of the engine over many guests, and whole rollouts by the driver
//! before the shipped API server. Runners and pages are played over sockets.
//!
//! Prints a JSON object; `cargo xtask bench fleet` shows it with targets. `BELLOWS_BENCH_GUESTS`
//! sets the number of guests, and `BELLOWS_BENCH_PART` one part: `engine`, `turns` or `whole`.

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

/// That of `bellows-fleet`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Guests of a rollout.
const GUESTS: usize = 10_000;

#[expect(clippy::print_stdout, reason = "the figures are its output")]
fn main() {
    driver::run_if_asked();
    let guests = std::env::var("BELLOWS_BENCH_GUESTS");
    let guests = guests.map_or(GUESTS, |text| text.parse().expect("a number of guests"));
    let part = std::env::var("BELLOWS_BENCH_PART").ok();
    let has = |name: &str| part.as_ref().is_none_or(|part| part == name);
    let mut figures = serde_json::Map::new();
    if has("engine") {
        figures.extend(engine::figures(guests));
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(played::serve_page());
    if has("turns") {
        figures.extend(runtime.block_on(turns::figures()));
    }
    if has("whole") {
        figures.extend(runtime.block_on(whole::figures(guests)));
    }
    println!("{}", serde_json::Value::Object(figures));
}
