//! From an address to an open export.

use super::address::Place;
use super::stream::Stream;
use super::tls::{Keys, Reading};
use plimsoll_nbd::client::{ClientEvent, ClientHandshake, Opened, Wishes};
use std::io;

/// Longest name of an export, in bytes.
const NAME_BYTES_MAX: usize = 4096;

/// Connects and negotiates `export`. Also returns the bytes that arrived after the handshake. Has no time limit of its own. Tries of one
/// place share `reading`.
///
/// # Errors
/// The error of the socket or the server.
pub async fn connect(
    place: &Place,
    export: String,
    contexts: Vec<String>,
    reading: &Reading,
) -> io::Result<(Stream, Box<Opened>, Vec<u8>)> {
    if export.len() > NAME_BYTES_MAX {
        return Err(io::Error::other("an export's name has at most 4096 bytes"));
    }
    let keys = match place {
        Place::Tls { host, certificates } => Some(Keys::read(host, certificates.clone(), reading).await?),
        Place::Unix(_) | Place::Tcp(_) => None,
    };
    let wishes = Wishes { meta_contexts: contexts, tls: keys.is_some(), ..Wishes::open(export) };
    let mut handshake = ClientHandshake::new(wishes);
    let mut stream = Stream::connect(place).await?;
    let (mut buffer, mut have) = (vec![0; 8192], 0..0);
    loop {
        while !handshake.output().is_empty() {
            match stream.write_now(handshake.output())? {
                Some(n) => handshake.output_sent(n),
                None => stream.writable().await?,
            }
        }
        match handshake.poll_event() {
            Some(ClientEvent::Transmission(opened)) => return Ok((stream, opened, buffer[have].to_vec())),
            Some(ClientEvent::Failed(e)) => return Err(io::Error::other(e.to_string())),
            Some(ClientEvent::StartTls) if have.is_empty() => {
                let keys = keys.as_ref().expect("it was wished for with keys only");
                stream = stream.over_tls(keys).await?;
                handshake.tls_established();
                continue;
            }
            Some(ClientEvent::StartTls) => {
                return Err(io::Error::other("the server sent bytes in the clear before TLS"));
            }
            Some(other) => return Err(io::Error::other(format!("an unexpected turn of the handshake: {other:?}"))),
            None => {}
        }
        if have.is_empty() {
            have = 0..loop {
                match stream.read_now(&mut buffer)? {
                    Some(0) => return Err(io::Error::other("the server closed the connection in the handshake")),
                    Some(n) => break n,
                    None => stream.readable().await?,
                }
            };
        }
        have.start += handshake.handle(&buffer[have.clone()]);
    }
}
