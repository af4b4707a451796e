//! What happens to the machines, and what must come of it.

use protocol::time::Span;

use super::{MEMBERS_EACH, Options, World};

/// Time in which machines find together and share the members.
const BEGIN: Span = Span::from_secs(60);
/// A machine that joins is known everywhere within this time.
const KNOWN_WITHIN: Span = Span::from_secs(10);
/// A machine that dies is known to be dead everywhere within this time.
const DEAD_WITHIN: Span = Span::from_secs(15);
/// The next leader plans within this time.
const PLAN_WITHIN: Span = Span::from_secs(30);
/// The load of each machine grows within this time.
const LOAD_CHANGES_WITHIN: Span = Span::from_secs(200);
/// One plan period: after this time there is one order again.
const ONE_ORDER_WITHIN: Span = Span::from_secs(10);

/// What was measured in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Until all knew of the machine that joined or died.
    pub known: Span,
    /// Until the next plan of a new leader.
    pub planned: Span,
    /// Members that moved.
    pub moved: u32,
}

/// Three of five machines, for example, lose the others and find them again.
///
/// # Errors
/// What did not hold.
pub fn split(options: Options, parts: &[usize], apart: Span) -> Result<Measured, String> {
    let mut world = begun(options)?;
    let mut groups = Vec::new();
    for (group, size) in parts.iter().enumerate() {
        groups.extend(std::iter::repeat_n(group, *size));
    }
    // Which machines are cut off differs from seed to seed.
    for index in (1..groups.len()).rev() {
        let other = world.rng.index(index + 1);
        groups.swap(index, other);
    }
    world.groups = groups;
    let before: Vec<u32> = world.machines.iter().map(|machine| machine.count).collect();
    let grown: Vec<u32> = world.machines.iter().map(|one| one.ledger.grown).collect();
    world.run_for(DEAD_WITHIN);
    let plans = world.plans.len();
    world.run_for(apart);
    let large = parts.iter().position(|size| size * 2 > options.machines);
    held(&world, large, &before)?;
    sized(&world, &grown, apart)?;
    let planned = world.plans[plans..]
        .iter()
        .any(|plan| Some(world.groups[plan.by]) == large);
    if large.is_some() && !planned && apart >= PLAN_WITHIN {
        return Err("the majority did not plan".to_owned());
    }
    if world.plans[plans..]
        .iter()
        .any(|plan| Some(world.groups[plan.by]) != large)
    {
        return Err("a minority planned".to_owned());
    }
    world.groups = vec![0; options.machines];
    world.run_for(ONE_ORDER_WITHIN);
    one_order(&world)?;
    world.run_for(BEGIN);
    settled(&world)
}

/// Machines of a minority hold their counts, and none leads.
fn held(world: &World, large: Option<usize>, before: &[u32]) -> Result<(), String> {
    for (index, machine) in world.machines.iter().enumerate() {
        if Some(world.groups[index]) != large && machine.count != before[index] {
            return Err(format!(
                "{} did not hold its count in a minority",
                machine.id
            ));
        }
    }
    let leaders = world.leaders();
    let of_large = leaders
        .iter()
        .filter(|index| Some(world.groups[**index]) == large);
    if of_large.count() != usize::from(large.is_some()) || leaders.len() > 1 {
        return Err(format!("leaders {leaders:?} while apart"));
    }
    Ok(())
}

/// Each machine went on sizing its own VM while it was cut off. What a VM wants changes by chance,
/// so a short cut shows nothing, nor does a machine that members fill.
fn sized(world: &World, before: &[u32], apart: Span) -> Result<(), String> {
    for (machine, before) in world.machines.iter().zip(before) {
        let is_free = machine.ledger.has_room() && apart >= LOAD_CHANGES_WITHIN;
        if is_free && machine.ledger.grown == *before {
            let (id, ledger, count) = (&machine.id, machine.ledger, machine.count);
            return Err(format!(
                "{id} sized no VM while apart: {ledger:?}, {count} members"
            ));
        }
    }
    Ok(())
}

/// The leader dies.
///
/// # Errors
/// What did not hold.
pub fn death(options: Options) -> Result<Measured, String> {
    let mut world = begun(options)?;
    let leader = world.leaders()[0];
    // One of the others responds late to the next leader.
    let slow = (leader + 1) % options.machines;
    world.machines[slow].slow = true;
    world.machines[leader].dead = true;
    let died = world.now;
    let plans = world.plans.len();
    let heard = |world: &World| {
        let mut living = (0..world.machines.len()).filter(|index| !world.machines[*index].dead);
        living.all(|index| !world.alive(index).contains_key(&leader))
    };
    while !heard(&world) && world.now.since(died) < DEAD_WITHIN {
        world.step();
    }
    let known = world.now.since(died);
    if !heard(&world) {
        return Err(format!(
            "the death is not known after {:.1} s",
            known.as_secs_f64()
        ));
    }
    let new_plan = |world: &World| {
        let mut later = world.plans[plans.min(world.plans.len())..].iter();
        later.find(|plan| plan.by != leader).map(|plan| plan.at)
    };
    while new_plan(&world).is_none() && world.now.since(died) < PLAN_WITHIN {
        world.step();
    }
    let Some(at) = new_plan(&world) else {
        return Err("no plan 30 s after the leader's death".to_owned());
    };
    world.run_for(BEGIN);
    world.run_for(BEGIN);
    one_order(&world)?;
    let measured = settled(&world)?;
    Ok(Measured {
        known,
        planned: at.since(died),
        ..measured
    })
}

/// One more machine joins.
///
/// # Errors
/// What did not hold.
pub fn join(options: Options) -> Result<Measured, String> {
    let fewer = Options {
        machines: options.machines - 1,
        ..options
    };
    let mut world = begun(fewer)?;
    let new = world.add();
    let joined = world.now;
    let known_everywhere = |world: &World| {
        let others = 0..new;
        world.alive(new).len() == new
            && others
                .into_iter()
                .all(|index| world.alive(index).contains_key(&new))
    };
    while !known_everywhere(&world) {
        if world.now.since(joined) >= KNOWN_WITHIN {
            return Err("the new machine is not known everywhere after 10 s".to_owned());
        }
        world.step();
    }
    let known = world.now.since(joined);
    world.run_for(BEGIN);
    one_order(&world)?;
    let measured = settled(&world)?;
    Ok(Measured { known, ..measured })
}

/// Machines that have found together.
fn begun(options: Options) -> Result<World, String> {
    let mut world = World::new(options);
    world.run_for(BEGIN);
    one_order(&world)?;
    settled(&world)?;
    Ok(world)
}

/// One machine leads, and all carry out its plans.
fn one_order(world: &World) -> Result<(), String> {
    let (leaders, orders) = (world.leaders(), world.orders());
    if leaders.len() == 1 && orders.len() == 1 {
        return Ok(());
    }
    Err(format!(
        "leaders {leaders:?}, orders {orders:?} at {:?}",
        world.now
    ))
}

/// The set has its members, and none was moved. No machine ever promised more than it has.
fn settled(world: &World) -> Result<Measured, String> {
    if let Some(overcommitted) = &world.overcommitted {
        return Err(overcommitted.clone());
    }
    let wanted = MEMBERS_EACH * u32::try_from(world.options.machines).unwrap_or(0);
    if world.total() != wanted {
        return Err(format!("{} members instead of {wanted}", world.total()));
    }
    if world.moved > 0 {
        return Err(format!("{} members were moved", world.moved));
    }
    Ok(Measured {
        moved: world.moved,
        ..Measured::default()
    })
}
