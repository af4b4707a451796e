//! No acknowledged transaction is lost when everything is killed. `cargo xtask bench durability`
//! repeats it often.

use bellows_tests::durability::Rig;
use bellows_tests::guest_or_skip;

const RUNS: u32 = 5;

/// Requirement: D1, D3. Every third run loses the run directories too, as a reboot may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_transactions_survive_the_kill_of_everything() {
    if !guest_or_skip("acknowledged_transactions_survive_the_kill_of_everything") {
        return;
    }
    let mut rig = Rig::new().await.unwrap();
    for number in 1..=RUNS {
        let run = rig.run(number).await.unwrap();
        println!("{number} of {RUNS}: {run:?}");
        assert_eq!(run.lost, 0, "{run:?}");
    }
}
