//! Passes descriptors to QEMU with the bytes of a command on the monitor's socket (`SCM_RIGHTS`).

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncWrite, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;

/// The descriptor for the next bytes. QEMU keeps only the newest one for the next `getfd`, so one
/// at a time is sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Attached(Arc<Mutex<Option<OwnedFd>>>);

impl Attached {
    pub(super) fn put(&self, descriptor: OwnedFd) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(descriptor);
    }

    fn take(&self) -> Option<OwnedFd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Writing half of a monitor's connection.
#[derive(Debug)]
pub(super) struct DescriptorWriter {
    half: OwnedWriteHalf,
    attached: Attached,
}

impl DescriptorWriter {
    /// A writer over a socket, and the slot for its descriptors.
    pub(super) fn new(half: OwnedWriteHalf) -> (Self, Attached) {
        let attached = Attached::default();
        let writer = Self {
            half,
            attached: attached.clone(),
        };
        (writer, attached)
    }
}

fn send(socket: &UnixStream, bytes: &[u8], descriptor: &OwnedFd) -> io::Result<usize> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    along.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut along,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    );
    sent.map_err(io::Error::from)
}

impl AsyncWrite for DescriptorWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(descriptor) = this.attached.take() else {
            return Pin::new(&mut this.half).poll_write(cx, bytes);
        };
        let socket: &UnixStream = this.half.as_ref();
        loop {
            match socket.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    this.attached.put(descriptor);
                    return Poll::Pending;
                }
            }
            let sent = socket.try_io(Interest::WRITABLE, || send(socket, bytes, &descriptor));
            match sent {
                // The readiness was out of date.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().half).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().half).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream as StdStream;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Received bytes, and the descriptors that came with them.
    fn received(socket: &StdStream) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = [0; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut along = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(socket, &mut parts, &mut along, flags).unwrap();
        let descriptors = along.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        let descriptors = descriptors.collect();
        (bytes[..got.bytes].to_vec(), descriptors)
    }

    #[tokio::test]
    async fn descriptor_is_sent_with_the_next_bytes_only() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = theirs.into_std().unwrap();
        theirs.set_nonblocking(false).unwrap();
        let (_read, write) = ours.into_split();
        let (mut writer, attached) = DescriptorWriter::new(write);
        writer.write_all(b"without").await.unwrap();
        let (bytes, descriptors) = received(&theirs);
        assert_eq!((bytes.as_slice(), descriptors.len()), (&b"without"[..], 0));

        let (mut sent, mut kept) = StdStream::pair().unwrap();
        sent.write_all(b"x").unwrap();
        attached.put(kept.try_clone().unwrap().into());
        writer.write_all(b"with").await.unwrap();
        let (bytes, mut descriptors) = received(&theirs);
        assert_eq!((bytes.as_slice(), descriptors.len()), (&b"with"[..], 1));
        let mut received_end = StdStream::from(descriptors.remove(0));
        let mut one = [0];
        received_end.read_exact(&mut one).unwrap();
        assert_eq!(&one, b"x");
        received_end.write_all(b"y").unwrap();
        sent.read_exact(&mut one).unwrap();
        assert_eq!(&one, b"y");
        kept.flush().unwrap();

        writer.write_all(b"after").await.unwrap();
        assert_eq!(received(&theirs).1.len(), 0);
    }
}
