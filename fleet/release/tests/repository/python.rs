//! Our repository, read by the reference implementation of TUF.

use std::process::Command;

use test_records::{Missing, installed, skip};

use crate::shop::{Shop, program};

/// Reads a folder as the reference client does, and prints the version and the program.
const CLIENT: &str = "
import os, sys
from tuf.ngclient import Updater
from tuf.ngclient.fetcher import FetcherInterface
from tuf.api.exceptions import DownloadHTTPError

class Files(FetcherInterface):
    def _fetch(self, url):
        path = url.removeprefix('file://')
        if not os.path.exists(path):
            raise DownloadHTTPError('no such file', 404)
        with open(path, 'rb') as file:
            yield file.read()

repository, work, platform = sys.argv[1:]
os.mkdir(work)
with open(repository + '/metadata/1.root.json', 'rb') as file:
    root = file.read()
updater = Updater(
    metadata_dir=work, metadata_base_url='file://' + repository + '/metadata/',
    target_dir=work, target_base_url='file://' + repository + '/targets/',
    fetcher=Files(), bootstrap=root)
updater.refresh()
def read(name):
    info = updater.get_targetinfo(name)
    with open(updater.download_target(info), 'rb') as file:
        return file.read().decode()
version = read('channel-stable.version').strip()
print(version)
print(read(f'program-monitor-{version}-{platform}'))
";

#[tokio::test]
async fn reference_client_reads_our_repository() {
    const NAME: &str = "reference_client_reads_our_repository";
    let python = installed("tuf-7.0.1/bin/python").filter(|path| path.is_file());
    let Some(python) = python else {
        return skip(NAME, Missing::Tool, "no client: `cargo xtask setup`");
    };
    let shop = Shop::open().await;
    // Metadata of a second version as well.
    shop.publisher.renew().await.unwrap();
    shop.promote("1.1.0").await.unwrap();
    let output = Command::new(python)
        .args(["-c", CLIENT])
        .args([shop.folder(), shop.folder().with_file_name("python")])
        .arg(fleet_release::PLATFORM)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, format!("1.1.0\n{}\n", program("1.1.0")));
}
