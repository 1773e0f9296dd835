//! The C faces, each in the place of the C library's function of the same name. Their contract is that function's; what is added
//! is in `engine`. Not covered, as no server of the profiles uses it for clients: `splice`, `recvmmsg`, io_uring.

use crate::engine::{Takes, accepted, around_read, around_write, closing, shutting_down};
use crate::sys::{Size, call};
use libc::{iovec, msghdr, size_t, sockaddr, socklen_t};
use plimsoll_shape::walk::{Came, Walker, Went};
use std::ffi::{c_int, c_void};
use std::slice::from_raw_parts;

/// The first `n` bytes of a buffer that a call just filled or took.
pub(crate) fn bytes<'a>(buf: *const c_void, n: usize) -> &'a [u8] {
    // SAFETY: the call said that `n` bytes of it are valid.
    unsafe { from_raw_parts(buf.cast(), n) }
}

/// The pieces that hold the first `n` bytes.
fn pieces(iov: *const iovec, count: usize, mut n: usize, f: &mut dyn FnMut(&[u8])) {
    if iov.is_null() || count == 0 {
        return; // the call took nothing from it
    }
    // SAFETY: the server's own array, which the call accepted.
    for v in unsafe { from_raw_parts(iov, count) } {
        let take = v.iov_len.min(n);
        if take > 0 {
            f(bytes(v.iov_base, take));
        }
        n -= take;
    }
}

fn input_pieces(w: &mut Walker, iov: *const iovec, count: usize, n: usize) -> Came {
    let mut all = Came::default();
    pieces(iov, count, n, &mut |b| {
        let came = w.input(b);
        all.request |= came.request;
        all.exempt |= came.exempt;
        all.urgent |= came.urgent;
        all.moved_on |= came.moved_on;
    });
    all
}

fn output_pieces(w: &mut Walker, iov: *const iovec, count: usize, n: usize) -> Went {
    let mut all = Went::default();
    pieces(iov, count, n, &mut |b| {
        let went = w.output(b);
        all.done |= went.done;
        all.login |= went.login;
    });
    all
}

macro_rules! hook {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $body:block) => {
        $(#[$doc])*
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret $body
    };
}

/// Effect of a read with these flags on the stream of requests.
fn takes(flags: c_int) -> Takes {
    match flags {
        // Left where it is, from beside the stream, or no data of the peer's at all.
        f if f & (libc::MSG_PEEK | libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 => Takes::Nothing,
        // TCP throws the bytes away: the buffer, which may be NULL, has none of them.
        f if f & libc::MSG_TRUNC != 0 => Takes::Unseen,
        _ => Takes::Bytes,
    }
}

/// Effect of a write with these flags on the stream of answers. The last byte of urgent data is beside it.
fn gives(flags: c_int) -> Takes {
    if flags & libc::MSG_OOB != 0 { Takes::Unseen } else { Takes::Bytes }
}

/// Ends the program before it reads more than its buffer takes, as the C library does. Compilers call these forms where they know the size.
fn must_fit(n: size_t, size: size_t) {
    if n > size {
        const WORDS: &[u8] = b"plimsoll: a program reads more than its buffer takes\n";
        call!(SYS_write, 2, WORDS.as_ptr(), WORDS.len());
        std::process::abort();
    }
}

hook! { fn read(fd: c_int, buf: *mut c_void, n: size_t) -> Size {
    around_read(fd, Takes::Bytes, &mut |most| call!(SYS_read, fd, buf, n.min(most)), &mut |w, n| w.input(bytes(buf, n)))
}}
hook! { fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, size: size_t) -> Size {
    must_fit(n, size);
    around_read(fd, Takes::Bytes, &mut |most| call!(SYS_read, fd, buf, n.min(most)), &mut |w, n| w.input(bytes(buf, n)))
}}
hook! { fn readv(fd: c_int, iov: *const iovec, count: c_int) -> Size {
    around_read(fd, Takes::Bytes, &mut |_| call!(SYS_readv, fd, iov, count), &mut |w, n| input_pieces(w, iov, count as usize, n))
}}
hook! { fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> Size {
    let mut call = |most| call!(SYS_recvfrom, fd, buf, n.min(most), flags, 0usize, 0usize);
    around_read(fd, takes(flags), &mut call, &mut |w, n| w.input(bytes(buf, n)))
}}
hook! { fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, size: size_t, flags: c_int) -> Size {
    must_fit(n, size);
    let mut call = |most| call!(SYS_recvfrom, fd, buf, n.min(most), flags, 0usize, 0usize);
    around_read(fd, takes(flags), &mut call, &mut |w, n| w.input(bytes(buf, n)))
}}
hook! { fn recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr, len: *mut socklen_t) -> Size {
    let mut call = |most| call!(SYS_recvfrom, fd, buf, n.min(most), flags, from, len);
    around_read(fd, takes(flags), &mut call, &mut |w, n| w.input(bytes(buf, n)))
}}
hook! { fn __recvfrom_chk(fd: c_int, buf: *mut c_void, n: size_t, size: size_t, flags: c_int, from: *mut sockaddr, len: *mut socklen_t) -> Size {
    must_fit(n, size);
    let mut call = |most| call!(SYS_recvfrom, fd, buf, n.min(most), flags, from, len);
    around_read(fd, takes(flags), &mut call, &mut |w, n| w.input(bytes(buf, n)))
}}
hook! { fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Size {
    let mut call = |_| call!(SYS_recvmsg, fd, msg, flags);
    // SAFETY: the server's own struct, which the call accepted.
    around_read(fd, takes(flags), &mut call, &mut |w, n| unsafe { input_pieces(w, (*msg).msg_iov, (*msg).msg_iovlen, n) })
}}
hook! { fn write(fd: c_int, buf: *const c_void, n: size_t) -> Size {
    around_write(fd, false, Takes::Bytes, &mut || call!(SYS_write, fd, buf, n), &mut |w, n| w.output(bytes(buf, n)))
}}
hook! { fn writev(fd: c_int, iov: *const iovec, count: c_int) -> Size {
    around_write(fd, false, Takes::Bytes, &mut || call!(SYS_writev, fd, iov, count), &mut |w, n| output_pieces(w, iov, count as usize, n))
}}
hook! { fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> Size {
    let mut call = || call!(SYS_sendto, fd, buf, n, flags, 0usize, 0usize);
    around_write(fd, false, gives(flags), &mut call, &mut |w, n| w.output(bytes(buf, n)))
}}
hook! { fn sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, to: *const sockaddr, len: socklen_t) -> Size {
    let mut call = || call!(SYS_sendto, fd, buf, n, flags, to, len);
    around_write(fd, false, gives(flags), &mut call, &mut |w, n| w.output(bytes(buf, n)))
}}
hook! { fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Size {
    let mut call = || call!(SYS_sendmsg, fd, msg, flags);
    // SAFETY: the server's own struct, which the call accepted.
    around_write(fd, false, gives(flags), &mut call, &mut |w, n| unsafe { output_pieces(w, (*msg).msg_iov, (*msg).msg_iovlen, n) })
}}
hook! { fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let new = call!(SYS_accept, fd, addr, len) as c_int;
    if new >= 0 { accepted(new); }
    new
}}
hook! { fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let new = call!(SYS_accept4, fd, addr, len, flags) as c_int;
    if new >= 0 { accepted(new); }
    new
}}
hook! { fn close(fd: c_int) -> c_int {
    closing(fd);
    call!(SYS_close, fd) as c_int
}}
hook! { fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        return if call!(SYS_fcntl, old, libc::F_GETFD) < 0 { -1 } else { new };
    }
    closing(new);
    call!(SYS_dup3, old, new, 0) as c_int
}}
hook! { fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    closing(new);
    call!(SYS_dup3, old, new, flags) as c_int
}}
hook! { fn shutdown(fd: c_int, how: c_int) -> c_int {
    let done = call!(SYS_shutdown, fd, how) as c_int;
    if how != libc::SHUT_WR { shutting_down(fd); }
    done
}}
hook! { fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int {
    crate::epoll::control(epfd, op, fd, event)
}}
hook! { fn epoll_wait(epfd: c_int, events: *mut libc::epoll_event, max: c_int, timeout: c_int) -> c_int {
    crate::epoll::wait(epfd, events, max, timeout, std::ptr::null())
}}
hook! { fn epoll_pwait(epfd: c_int, events: *mut libc::epoll_event, max: c_int, timeout: c_int, mask: *const libc::sigset_t) -> c_int {
    crate::epoll::wait(epfd, events, max, timeout, mask)
}}
