//! `bellows image build`: images from recipes, and guests from container images.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use daemon_kit::exit::Exit;
use protocol::quantity::Quantity;
use vm_images::container::{ContainerBuild, ImageSpec};
use vm_images::{Amount, BuildError, Image, Inputs, Recipe, TICK};

use super::store::store;
use super::view::{ImageView, view};
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::places::{GUEST_IMAGE, RUNTIME_IMAGE};
use crate::progress::Progress;
use crate::terminal::out;

/// Variable with the directory of the guest's programs. The flag overrides it.
const GUEST_BIN_VARIABLE: &str = "BELLOWS_GUEST_BIN_DIR";

/// Build images.
///
/// Without a recipe: QEMU and the PostgreSQL guest, which is what `bellows up` and
/// `bellows vm create` need. With --from: a guest of a container image. Needs root, because file
/// owners are part of an image.
#[derive(Debug, Clone, Args)]
pub(crate) struct BuildArgs {
    /// Names of built-in recipes or files
    #[arg(value_name = "RECIPE", default_values_t = [RUNTIME_IMAGE.to_owned(), GUEST_IMAGE.to_owned()])]
    recipes: Vec<String>,
    /// Make a guest of this container image: a directory in OCI layout, or an archive of one or of
    /// `docker save`
    #[arg(
        long,
        value_name = "IMAGE",
        requires = "name",
        conflicts_with = "recipes"
    )]
    from: Option<PathBuf>,
    /// Which image of the archive, if it holds several: its tag or whole name
    #[arg(long, value_name = "TAG", requires = "from")]
    tag: Option<String>,
    /// Name of the guest, such as mine/app:1
    #[arg(long, value_name = "NAME", requires = "from")]
    name: Option<String>,
    /// What is added to the container image: an image specification of NeonVM's vm-builder, YAML
    #[arg(long, value_name = "FILE", requires = "from")]
    spec: Option<PathBuf>,
    /// Size of the guest's root disk; a VM may ask for a larger one
    #[arg(long, value_name = "SIZE", default_value = "1Gi", requires = "from", value_parser = disk_mib)]
    disk_size: u32,
    /// Directory with vm-monitor and neonvmd, linked statically
    /// [default: $BELLOWS_GUEST_BIN_DIR, else lib/bellows/guest beside this program's directory]
    #[arg(long, value_name = "DIR")]
    guest_bin_dir: Option<PathBuf>,
    /// Ask the Debian mirror for newer packages
    #[arg(long)]
    refresh: bool,
    /// Base address of a Debian archive [default: the one apt uses]
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// A size in MiB, from 64 MiB to 1 TiB.
fn disk_mib(text: &str) -> Result<u32, String> {
    const LEAST_AND_MOST: std::ops::RangeInclusive<u64> = 64..=1 << 20;
    let quantity: Quantity = text.parse().map_err(|_| "not a size such as 2Gi")?;
    let mib = quantity.as_u64().unwrap_or(0) >> 20;
    if !LEAST_AND_MOST.contains(&mib) {
        return Err("from 64Mi to 1Ti".to_owned());
    }
    u32::try_from(mib).map_err(|error| error.to_string())
}

pub(super) fn build(args: &BuildArgs) -> Outcome {
    if let (Some(from), Some(name)) = (&args.from, &args.name) {
        return build_container(args, from, name);
    }
    let recipes: Vec<Recipe> = args
        .recipes
        .iter()
        .map(|name| Recipe::load(name).map_err(|error| Fail::usage(daemon_kit::chain(&error))))
        .collect::<Outcome<_>>()?;
    let store = store()?;
    let mut built = Vec::new();
    for recipe in &recipes {
        let inputs = Inputs {
            guest_binaries: guest_binaries(recipe, args)?,
            refresh: args.refresh,
            mirror: args.mirror.clone(),
        };
        let image = follow(args, &recipe.name, |say| {
            vm_images::build(&store, recipe, &inputs, say)
        })?;
        built.push(view(&image));
    }
    print_built(args, &built)
}

fn build_container(args: &BuildArgs, from: &Path, name: &str) -> Outcome {
    let spec = args.spec.as_deref().map(ImageSpec::load).transpose();
    let spec = spec.map_err(|error| Fail::usage(daemon_kit::chain(&error)))?;
    let wanted = ContainerBuild {
        name: name.to_owned(),
        source: from.to_owned(),
        tag: args.tag.clone(),
        spec: spec.unwrap_or_default(),
        disk_mib: args.disk_size,
    };
    let inputs = Inputs {
        guest_binaries: Some(guest_programs(name, &["vm-monitor", "neonvmd"], args)?),
        refresh: args.refresh,
        mirror: args.mirror.clone(),
    };
    let store = store()?;
    let image = follow(args, name, |say| {
        vm_images::container::build(&store, &wanted, &inputs, say)
    })?;
    print_built(args, &[view(&image)])
}

/// Runs a build with a line of progress, and prints its result.
fn follow(
    args: &BuildArgs,
    name: &str,
    build: impl FnOnce(&mut dyn FnMut(vm_images::Progress)) -> Result<Image, BuildError>,
) -> Outcome<Image> {
    let mut progress = Progress::new();
    let image = build(&mut |step| progress.say(&step_text(name, &step)))
        .map_err(|error| explain_build(name, &error))?;
    let seconds = progress.elapsed().as_secs_f64();
    progress.clear();
    if matches!(args.output, Format::Table | Format::Wide) {
        out(&format!("{name} {} ({seconds:.1} s)", image.digest.short()));
    }
    Ok(image)
}

fn print_built(args: &BuildArgs, built: &[ImageView]) -> Outcome {
    match args.output {
        Format::Json | Format::Yaml => {
            print_value(args.output, &serde_json::json!({"items": built}))
        }
        Format::Table | Format::Wide => Ok(()),
    }
}

fn step_text(name: &str, step: &vm_images::Progress) -> String {
    let amount = match step.amount {
        Amount::Unknown => String::new(),
        Amount::Items { done, total } => format!(" {done}/{total}"),
        Amount::Permille(part) => format!(" {} %", part / 10),
        Amount::Bytes(bytes) => format!(" {} MiB", bytes >> 20),
    };
    let detail = if step.detail.is_empty() {
        String::new()
    } else {
        format!(" ({})", step.detail)
    };
    format!("{name}: {}{amount}{detail}", step.step)
}

/// Directory of the programs that the recipe installs in the guest. `None` if it installs none.
fn guest_binaries(recipe: &Recipe, args: &BuildArgs) -> Outcome<Option<PathBuf>> {
    let wanted: Vec<&str> = recipe.guest().map_or_else(Vec::new, |guest| {
        guest
            .binaries
            .iter()
            .map(|binary| binary.name.as_str())
            .collect()
    });
    if wanted.is_empty() {
        return Ok(None);
    }
    guest_programs(&recipe.name, &wanted, args).map(Some)
}

fn guest_programs(image: &str, wanted: &[&str], args: &BuildArgs) -> Outcome<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| beside(&exe));
    choose_guest_binaries(
        image,
        wanted,
        args.guest_bin_dir.as_deref(),
        std::env::var_os(GUEST_BIN_VARIABLE),
        beside,
    )
}

/// `../lib/bellows/guest`, relative to the directory of the program.
fn beside(exe: &Path) -> Option<PathBuf> {
    Some(exe.parent()?.parent()?.join("lib/bellows/guest"))
}

fn choose_guest_binaries(
    image: &str,
    wanted: &[&str],
    given: Option<&Path>,
    variable: Option<OsString>,
    beside: Option<PathBuf>,
) -> Outcome<PathBuf> {
    let rule = format!("{image} has these programs inside: {}", wanted.join(", "));
    let missing = |dir: &Path| {
        wanted
            .iter()
            .find(|name| !dir.join(name).is_file())
            .copied()
    };
    let fix = "build them with `cargo xtask guest-bins` and name the directory it prints: --guest-bin-dir DIR";
    let chosen = given
        .map(Path::to_owned)
        .or_else(|| variable.filter(|dir| !dir.is_empty()).map(PathBuf::from));
    if let Some(dir) = chosen {
        return match missing(&dir) {
            None => Ok(dir),
            Some(name) => Err(
                Fail::missing(format!("{} has no file {name}", dir.display()))
                    .rule(rule)
                    .fix(fix),
            ),
        };
    }
    match beside.filter(|dir| missing(dir).is_none()) {
        Some(dir) => Ok(dir),
        None => Err(
            Fail::missing("the programs that go into the guest are not found")
                .rule(rule)
                .fix(fix),
        ),
    }
}

fn explain_build(name: &str, error: &BuildError) -> Fail {
    let exit = match error {
        BuildError::Recipe(_)
        | BuildError::Packages { .. }
        | BuildError::Merge(_)
        | BuildError::Spec(_) => Exit::Config,
        BuildError::Network { .. } => Exit::TryAgain,
        _ => Exit::Dependency,
    };
    Fail::new(
        exit,
        format!("{name} is not built: {}", daemon_kit::chain(error)),
    )
}

/// The builder reports at least this often, so that the progress line keeps moving.
const _: () = assert!(TICK.as_millis() <= 1000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_programs_come_from_flag_then_variable_then_beside() {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str, files: &[&str]| {
            let dir = root.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            for file in files {
                std::fs::write(dir.join(file), "").unwrap();
            }
            dir
        };
        let wanted = ["vm-monitor", "neonvmd"];
        let (full, other, half) = (
            dir("full", &wanted),
            dir("other", &wanted),
            dir("half", &wanted[..1]),
        );
        let choose = |given: Option<&Path>, variable: Option<&Path>, beside: Option<&Path>| {
            choose_guest_binaries(
                "i",
                &wanted,
                given,
                variable.map(Into::into),
                beside.map(Into::into),
            )
        };
        assert_eq!(choose(Some(&full), Some(&other), None).unwrap(), full);
        assert_eq!(choose(None, Some(&other), Some(&full)).unwrap(), other);
        assert_eq!(choose(None, None, Some(&full)).unwrap(), full);
        let fail = choose(Some(&half), Some(&full), Some(&full)).unwrap_err();
        assert!(fail.what().contains("has no file neonvmd"), "{fail}");
        let fail = choose(None, None, Some(&half)).unwrap_err();
        assert_eq!(fail.exit() as u8, 69);
        assert!(
            fail.to_string().contains("cargo xtask guest-bins"),
            "{fail}"
        );
    }
}
