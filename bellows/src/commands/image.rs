//! `bellows image`: build, list and remove images.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use daemon_kit::exit::Exit;
use procfs::process::{FDTarget, all_processes};
use protocol::image::{Digest, ImageContent};
use protocol::quantity::Quantity;
use serde::Serialize;
use vm_images::container::{ContainerBuild, ImageSpec};
use vm_images::oci::{self, OciImage};
use vm_images::{Amount, BuildError, Image, Inputs, Recipe, Store, StoreError, TICK};

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::places::{StateDir, cache_dir};
use crate::progress::Progress;
use crate::terminal::{err, out};

/// Where the guest's programs lie, if not given.
const GUEST_BIN_VARIABLE: &str = "BELLOWS_GUEST_BIN_DIR";

/// Build, list and remove images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build images from their recipes; what is already built and unchanged costs nothing
    Build(BuildArgs),
    /// List built images
    Ls(LsArgs),
    /// Forget an image's name; its files go at the next gc
    Rm(RmArgs),
    /// Remove files that no image and no VM uses
    Gc(GcArgs),
    /// Make an OCI archive of files and trees, without a daemon or a registry
    Pack(PackArgs),
}

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

/// List built images.
#[derive(Debug, Clone, Args)]
pub(crate) struct LsArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// Forget an image's name.
#[derive(Debug, Clone, Args)]
pub(crate) struct RmArgs {
    /// Name, such as bellows/postgres:15
    name: String,
}

/// Remove files that no image and no VM uses.
///
/// Kept are images that have a name, those that VMs and root disks of this state directory were
/// made from, and those that any running process has open.
#[derive(Debug, Clone, Args)]
pub(crate) struct GcArgs {}

/// Make an OCI archive.
///
/// The specification is JSON: `reference` (name and tag), `layers` (lists of parts: `file`, `tree`,
/// `link`, `text`, `directory`), `entrypoint`, `env`. The same files give the same bytes.
/// `ctr images import` and its like take the archive.
#[derive(Debug, Clone, Args)]
pub(crate) struct PackArgs {
    /// What goes in
    #[arg(value_name = "SPECIFICATION")]
    specification: PathBuf,
    /// The archive to write
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
}

/// An image, as it is listed. Shape of `bellows image ls -o json` in `{"items":[…]}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ImageView {
    name: String,
    digest: String,
    kind: &'static str,
    version: String,
    suite: String,
    bytes: u64,
    packages: usize,
    reproducible: bool,
    dir: String,
}

pub(crate) async fn run(context: &Context, command: ImageCommand) -> Outcome {
    // Builds and removals block for long; there is nothing else to do meanwhile.
    match command {
        ImageCommand::Build(args) => build(&args),
        ImageCommand::Ls(args) => list(context, &args),
        ImageCommand::Rm(args) => remove(&args),
        ImageCommand::Gc(_) => collect(&context.state()?),
        ImageCommand::Pack(args) => pack(&args),
    }
}

/// The cache of images.
pub(crate) fn store() -> Outcome<Store> {
    Store::open(store_dir()?).map_err(|error| explain_store(&error))
}

/// A size in MiB, from 64 up, as recipes have it.
fn disk_mib(text: &str) -> Result<u32, String> {
    const LEAST_AND_MOST: std::ops::RangeInclusive<u64> = 64..=1 << 20;
    let quantity: Quantity = text.parse().map_err(|_| "not a size such as 2Gi")?;
    let mib = quantity.as_u64().unwrap_or(0) >> 20;
    if !LEAST_AND_MOST.contains(&mib) {
        return Err("from 64Mi to 1Ti".to_owned());
    }
    u32::try_from(mib).map_err(|error| error.to_string())
}

fn build(args: &BuildArgs) -> Outcome {
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

/// Builds with a line of progress, and says what came of it.
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

fn pack(args: &PackArgs) -> Outcome {
    let path = args.specification.display();
    let text = std::fs::read(&args.specification)
        .map_err(|error| Fail::missing(format!("{path} cannot be read: {error}")))?;
    let image: OciImage = serde_json::from_slice(&text)
        .map_err(|error| Fail::usage(format!("{path} is no specification: {error}")))?;
    let digest = oci::write(&image, &args.archive)
        .map_err(|error| Fail::missing(daemon_kit::chain(&error)))?;
    out(&format!("{} sha256:{}", image.reference, digest.as_str()));
    Ok(())
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

/// The directory with the programs that the recipe puts into the guest; `None` if it puts none.
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

/// `../lib/bellows/guest` of the directory that holds the program.
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

fn list(context: &Context, args: &LsArgs) -> Outcome {
    let images = store()?.images().map_err(|error| explain_store(&error))?;
    let views: Vec<ImageView> = images.iter().map(view).collect();
    match args.output {
        Format::Json | Format::Yaml => {
            print_value(args.output, &serde_json::json!({"items": views}))
        }
        Format::Table | Format::Wide if views.is_empty() => {
            err("no images; build them: bellows image build");
            Ok(())
        }
        Format::Table | Format::Wide => {
            table(&views, args.output == Format::Wide).print(context.paint());
            Ok(())
        }
    }
}

fn view(image: &Image) -> ImageView {
    let (kind, version) = match &image.manifest.content {
        ImageContent::Guest(guest) => ("guest", format!("Linux {}", guest.kernel_version)),
        ImageContent::Runtime(runtime) => ("runtime", format!("QEMU {}", runtime.qemu_version)),
    };
    let tree = match &image.manifest.content {
        ImageContent::Runtime(runtime) => runtime.root_bytes,
        ImageContent::Guest(_) => 0,
    };
    ImageView {
        name: image.manifest.name.clone(),
        digest: image.digest.to_string(),
        kind,
        version,
        suite: image.manifest.suite.clone(),
        bytes: image
            .manifest
            .files
            .values()
            .map(|file| file.bytes)
            .sum::<u64>()
            + tree,
        packages: image.manifest.packages.len(),
        reproducible: image.manifest.reproducible,
        dir: image.dir.display().to_string(),
    }
}

fn table(images: &[ImageView], wide: bool) -> Table {
    let mut header = vec!["NAME", "DIGEST", "KIND", "VERSION", "DEBIAN", "SIZE"];
    if wide {
        header.extend(["PACKAGES", "REPRODUCIBLE", "DIRECTORY"]);
    }
    let mut table = Table::new(&header);
    for image in images {
        let mut row = vec![
            image.name.clone().into(),
            image.digest.chars().take(12).collect::<String>().into(),
            image.kind.into(),
            image.version.clone().into(),
            image.suite.clone().into(),
            crate::view::units::memory(image.bytes).into(),
        ];
        if wide {
            row.extend([
                image.packages.to_string().into(),
                if image.reproducible { "yes" } else { "no" }.into(),
                image.dir.clone().into(),
            ]);
        }
        table.row(row);
    }
    table
}

fn remove(args: &RmArgs) -> Outcome {
    let store = store()?;
    let image = store
        .resolve(&args.name)
        .map_err(|error| explain_store(&error))?;
    if image.is_none() {
        return Err(Fail::not_so(format!("there is no image {}", args.name))
            .fix("see what there is: bellows image ls"));
    }
    let reference = store.root().join("refs").join(&args.name);
    std::fs::remove_file(&reference).map_err(|error| {
        Fail::missing(format!(
            "{} cannot be removed: {error}",
            reference.display()
        ))
    })?;
    out(&format!(
        "{} forgotten; its files go with: bellows image gc",
        args.name
    ));
    Ok(())
}

fn collect(state: &StateDir) -> Outcome {
    let store = store()?;
    let keep = used_by_vms(state, store.root())
        .into_iter()
        .chain(used_by_disks(state)?)
        .chain(used_by_processes(store.root()))
        .collect();
    let mut progress = Progress::new();
    progress.say("collecting");
    let collected = store
        .collect(&keep)
        .map_err(|error| explain_store(&error))?;
    progress.clear();
    out(&format!(
        "{} artefacts removed, {} freed",
        collected.blobs.len(),
        crate::view::units::memory(collected.bytes)
    ));
    Ok(())
}

/// Digests that runners of this state directory name in their configuration.
fn used_by_vms(state: &StateDir, store: &Path) -> BTreeSet<Digest> {
    let dirs = std::fs::read_dir(state.vms())
        .into_iter()
        .flatten()
        .flatten();
    dirs.filter_map(|dir| std::fs::read_to_string(dir.path().join("config.json")).ok())
        .flat_map(|text| digests_in(&text, store))
        .collect()
}

/// Digests that root disks lie over, also those that were moved aside. A record that cannot be read
/// stops the collection: its disk would be lost with its image.
fn used_by_disks(state: &StateDir) -> Outcome<BTreeSet<Digest>> {
    let mut used = BTreeSet::new();
    let below = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let places = below(state.disks()).chain(below(state.trash()));
    for path in places.map(|dir| dir.path().join("disk.json")) {
        let unreadable = |why: String| {
            Fail::missing(format!("{}: {why}", path.display()))
                .rule("a root disk holds only what differs from its image, so no image may go before all disks are known")
                .fix("restore the file, or move its directory out of the state directory")
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(error.to_string())),
        };
        let record: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        let digest = record["image_digest"].as_str().unwrap_or_default();
        used.insert(Digest::parse(digest).map_err(|error| unreadable(error.to_string()))?);
    }
    Ok(used)
}

/// Every digest after `<store>/blobs/` in a text.
fn digests_in(text: &str, store: &Path) -> Vec<Digest> {
    let blobs = format!("{}/", store.join("blobs").display());
    text.match_indices(&blobs)
        .filter_map(|(at, _)| text.get(at + blobs.len()..at + blobs.len() + 64))
        .filter_map(|digits| Digest::parse(digits).ok())
        .collect()
}

/// Digests of which any process has a file open or runs a program.
fn used_by_processes(store: &Path) -> BTreeSet<Digest> {
    let mut used = BTreeSet::new();
    let Ok(processes) = all_processes() else {
        return used;
    };
    for process in processes.flatten() {
        let files = process.fd().into_iter().flatten().flatten();
        let open = files.filter_map(|file| match file.target {
            FDTarget::Path(path) => Some(path),
            _ => None,
        });
        for path in open.chain(process.exe()) {
            used.extend(digests_in(&path.display().to_string(), store));
        }
    }
    used
}

/// A failure of the cache.
pub(crate) fn explain_store(error: &StoreError) -> Fail {
    let what = daemon_kit::chain(error);
    match error {
        StoreError::Name(_) => Fail::usage(what),
        _ => Fail::missing(what),
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

/// Reports come at least this often, so the progress line never seems stuck.
const _: () = assert!(TICK.as_millis() <= 1000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_programs_are_taken_from_flag_then_variable_then_beside() {
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

    #[test]
    fn images_of_vms_are_found_in_their_configuration() {
        let digest = "0123456789abcdef".repeat(4);
        let text =
            format!(r#"{{"kernel":"/c/store/blobs/{digest}/vmlinuz","x":"/c/store/blobs/short"}}"#);
        let found = digests_in(&text, Path::new("/c/store"));
        assert_eq!(found, [Digest::parse(&digest).unwrap()]);
        assert!(digests_in(&text, Path::new("/d/store")).is_empty());
    }

    #[test]
    fn images_below_root_disks_stay_and_an_unreadable_record_stops_the_collection() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(root.path())).unwrap();
        assert!(used_by_disks(&state).unwrap().is_empty());
        let put = |place: PathBuf, text: &str| {
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("disk.json"), text).unwrap();
        };
        let record = |byte: u8| {
            let digest = Digest::from_bytes([byte; 32]);
            serde_json::json!({"image_digest": digest.as_str()}).to_string()
        };
        put(state.disks().join("default_pg"), &record(1));
        put(
            state.trash().join("default_old_1738367999000000"),
            &record(2),
        );
        let both = [1, 2].map(|byte| Digest::from_bytes([byte; 32]));
        assert_eq!(used_by_disks(&state).unwrap(), both.into());
        put(state.disks().join("default_bad"), "{");
        let fail = used_by_disks(&state).unwrap_err();
        assert!(fail.to_string().contains("default_bad/disk.json"), "{fail}");
    }

    #[test]
    fn an_image_that_a_process_has_open_is_in_use() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().canonicalize().unwrap();
        let digest = Digest::from_bytes([7; 32]);
        let dir = store.join("blobs").join(digest.as_str());
        std::fs::create_dir_all(&dir).unwrap();
        let file = std::fs::File::create(dir.join("root.img")).unwrap();
        assert!(used_by_processes(&store).contains(&digest));
        drop(file);
        assert!(!used_by_processes(&store).contains(&digest));
    }
}
