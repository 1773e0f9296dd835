//! A blocking client of MySQL's or PostgreSQL's protocol, for accounts that need no password. It finds the end of an answer with
//! the gate's own walkers, so every use of it tests them against a real server.

use crate::walk::{Protocol, Walker};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// One connection.
pub struct Client {
    stream: TcpStream,
    walker: Walker,
    protocol: Protocol,
    answer: Vec<u8>,
}

/// Answer to a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Done; the answer's bytes stand in [`Client::answer`].
    Ok,
    /// The server refused: number (MySQL) or five letters (PostgreSQL), and its text.
    Error(String),
}

/// Time that an answer may take before the client gives up.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Client {
    /// Logs in.
    ///
    /// # Errors
    /// If the server can't be reached, wants a password, or speaks something else.
    pub fn connect(protocol: Protocol, port: u16, account: &str, database: &str) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut client = Client { stream, walker: Walker::new(protocol), protocol, answer: Vec::new() };
        match protocol {
            Protocol::Mysql => client.login_mysql(account, database)?,
            Protocol::Postgres => client.login_postgres(account, database)?,
            _ => return Err(bad("there is no client of this protocol")),
        }
        Ok(client)
    }

    fn login_mysql(&mut self, account: &str, database: &str) -> io::Result<()> {
        let greeting = self.packet()?;
        self.walker.output(&greeting);
        // Protocol 4.1, secure connection, database, transactions, multiple results, plugin authentication.
        let caps: u32 = 0x0000_0200 | 0x8000 | 0x8 | 0x2000 | 0x2_0000 | 0x8_0000 | 0x1;
        let mut body = caps.to_le_bytes().to_vec();
        body.extend(0x0100_0000u32.to_le_bytes());
        body.push(45);
        body.extend([0; 23]);
        body.extend(account.as_bytes());
        body.extend([0, 0]);
        body.extend(database.as_bytes());
        body.push(0);
        body.extend(b"mysql_native_password\0");
        self.send_mysql(1, &body)?;
        loop {
            let p = self.packet()?;
            self.walker.output(&p);
            match p.get(4) {
                Some(0) => return Ok(()),
                // Asked to authenticate in another way: with nothing, as there is no password.
                Some(0xfe) => self.send_mysql(p[3].wrapping_add(1), &[])?,
                Some(0xff) => return Err(io::Error::new(io::ErrorKind::PermissionDenied, text(&p[7..]))),
                _ => return Err(bad("the login was answered with something unknown")),
            }
        }
    }

    fn packet(&mut self) -> io::Result<Vec<u8>> {
        let mut p = vec![0; 4];
        self.stream.read_exact(&mut p)?;
        let len = usize::from(p[0]) | usize::from(p[1]) << 8 | usize::from(p[2]) << 16;
        p.resize(4 + len, 0);
        self.stream.read_exact(&mut p[4..])?;
        Ok(p)
    }

    fn send_mysql(&mut self, sequence: u8, body: &[u8]) -> io::Result<()> {
        let len = (body.len() as u32).to_le_bytes();
        let mut p = vec![len[0], len[1], len[2], sequence];
        p.extend(body);
        self.walker.input(&p);
        self.stream.write_all(&p)
    }

    fn login_postgres(&mut self, account: &str, database: &str) -> io::Result<()> {
        let mut body = 196_608u32.to_be_bytes().to_vec();
        for word in ["user", account, "database", database, ""] {
            body.extend(word.as_bytes());
            body.push(0);
        }
        let mut p = (body.len() as u32 + 4).to_be_bytes().to_vec();
        p.extend(body);
        self.walker.input(&p);
        self.stream.write_all(&p)?;
        while !self.walker.at_rest() {
            self.read_some()?;
            if self.answer.first() == Some(&b'E') {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text(&self.answer)));
            }
        }
        Ok(())
    }

    fn read_some(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 16_384];
        let n = self.stream.read(&mut bytes)?;
        if n == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        self.answer.extend(&bytes[..n]);
        Ok(self.walker.output(&bytes[..n]).done)
    }

    /// Sends a statement and doesn't wait.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn send(&mut self, sql: &str) -> io::Result<()> {
        if self.protocol == Protocol::Mysql {
            return self.send_mysql(0, &[&[3], sql.as_bytes()].concat());
        }
        let mut p = vec![b'Q'];
        p.extend((sql.len() as u32 + 5).to_be_bytes());
        p.extend(sql.as_bytes());
        p.push(0);
        self.walker.input(&p);
        self.stream.write_all(&p)
    }

    /// Sends bytes as they are: a part of a statement.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.walker.input(bytes);
        self.stream.write_all(bytes)
    }

    /// Waits for the answer to what was sent.
    ///
    /// # Errors
    /// If the connection is broken, or no answer comes in time.
    pub fn receive(&mut self) -> io::Result<Answer> {
        self.answer.clear();
        while !self.read_some()? {}
        if self.walker.is_lost() {
            return Err(bad("the answer could not be followed"));
        }
        Ok(match self.protocol {
            Protocol::Mysql if self.answer.get(4) == Some(&0xff) => {
                let code = u16::from_le_bytes([self.answer[5], self.answer[6]]);
                Answer::Error(format!("{code} {}", text(&self.answer[7..])))
            }
            Protocol::Postgres if self.answer[0] == b'E' => Answer::Error(text(&self.answer[5..])),
            _ => Answer::Ok,
        })
    }

    /// Sends a statement and waits for its answer.
    ///
    /// # Errors
    /// If the connection is broken, or no answer comes in time.
    pub fn query(&mut self, sql: &str) -> io::Result<Answer> {
        self.send(sql)?;
        self.receive()
    }

    /// The last answer, as it came.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// In a transaction, as the server says.
    pub fn is_open(&self) -> bool {
        self.walker.is_open()
    }

    /// The server's number of this connection (MySQL), by asking for it.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn mysql_id(&mut self) -> io::Result<String> {
        self.query("SELECT CONNECTION_ID()")?;
        let digits = self.answer.iter().rev().skip_while(|b| !b.is_ascii_digit());
        let digits: Vec<u8> = digits.take_while(|b| b.is_ascii_digit()).copied().collect();
        Ok(digits.iter().rev().map(|b| char::from(*b)).collect())
    }
}

fn text(bytes: &[u8]) -> String {
    let printable = |b: &u8| if b.is_ascii_graphic() { char::from(*b) } else { ' ' };
    bytes.iter().take(300).map(printable).collect::<String>().trim().to_string()
}
