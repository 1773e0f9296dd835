//! A connection to a Ceph cluster.

use crate::api::{Handle, Libraries};
use crate::error::{Error, check};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Settings of every connection: no cache of librbd's, so that a write that is done is on the replicas; and no endless wait for monitors.
const SETTINGS: [(&str, &str); 9] = [
    // librados stops taking requests for all OSDs at these limits, also if all that wait are for one OSD that is stopped. A node bounds them itself, by permits.
    ("objecter_inflight_ops", "1000000"),
    ("objecter_inflight_op_bytes", "1099511627776"),
    // Reads go to the primary, unless a handle for a host says otherwise.
    ("rbd_read_from_replica_policy", "default"),
    ("rbd_cache", "false"),
    ("rbd_plugins", ""),
    ("client_mount_timeout", "10"),
    ("rados_mon_op_timeout", "10"),
    // A lock that was broken stays lost, whatever its former owner does.
    ("rbd_blocklist_on_break_lock", "true"),
    // For the monitors' own time. A cluster may refuse another one, and nobody would get the lock of a dead owner.
    ("rbd_blocklist_expire_seconds", "0"),
];

/// A connected cluster handle.
pub struct Cluster {
    pub(crate) libraries: Arc<Libraries>,
    pub(crate) handle: Handle,
    /// Settings of librbd that images must have. The cluster's settings for a pool or an image come before the client's.
    pub(crate) required: Vec<(String, String)>,
}

// SAFETY: a rados_t may be used by several threads at once (librados.h); the pointer is only passed to the library.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

pub(crate) fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::says(format!("{text:?}: a zero byte")))
}

impl Cluster {
    /// Connects as `user` (without `client.`) by the configuration file `conf`, with `settings` beside it.
    ///
    /// # Errors
    /// The step that failed, with the file or the setting.
    pub fn connect(
        libraries: &Arc<Libraries>,
        conf: &Path,
        user: &str,
        settings: &[(&str, &str)],
    ) -> Result<Arc<Cluster>, Error> {
        let (l, c_user) = (libraries.clone(), c_string(user)?);
        let mut handle = null_mut();
        // SAFETY: `handle` is written by the call; the user's name is a C string.
        let created = unsafe { (l.rados_create)(&mut handle, c_user.as_ptr()) };
        check(created, || format!("cannot make a cluster handle for user `{user}`"))?;
        // From here on dropping it gives the handle back.
        let all = || SETTINGS.iter().chain(settings);
        // A later one comes before an earlier one of its name.
        let of_rbd: BTreeMap<&str, &str> = all().copied().filter(|(key, _)| key.starts_with("rbd_")).collect();
        let required = of_rbd.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let cluster = Cluster { libraries: l.clone(), handle, required };
        let c_conf = c_string(&conf.display().to_string())?;
        // SAFETY: the handle is live; the path is a C string.
        let read = unsafe { (l.rados_conf_read_file)(handle, c_conf.as_ptr()) };
        check(read, || format!("{}: Ceph's configuration can't be read", conf.display()))?;
        for (key, value) in all() {
            let (c_key, c_value) = (c_string(key)?, c_string(value)?);
            // SAFETY: the handle is live; both are C strings.
            let set = unsafe { (l.rados_conf_set)(handle, c_key.as_ptr(), c_value.as_ptr()) };
            check(set, || format!("Ceph's setting {key} = {value:?} is refused"))?;
        }
        // SAFETY: the handle is live and configured.
        let connected = unsafe { (l.rados_connect)(handle) };
        check(connected, || {
            format!(
                "cannot connect to the cluster of {} as user `{user}`: check the monitors' addresses and the user's keyring",
                conf.display()
            )
        })?;
        Ok(Arc::new(cluster))
    }

    /// Sends a command to the monitors; its answer.
    ///
    /// # Errors
    /// The library's.
    pub fn ask_monitors(&self, command: &str) -> Result<Vec<u8>, Error> {
        self.ask(self.libraries.rados_mon_command, "monitors", command)
    }

    /// Sends a command to the manager; its answer.
    ///
    /// # Errors
    /// The library's.
    pub fn ask_manager(&self, command: &str) -> Result<Vec<u8>, Error> {
        self.ask(self.libraries.rados_mgr_command, "manager", command)
    }

    fn ask(&self, function: Command, whom: &str, command: &str) -> Result<Vec<u8>, Error> {
        let c_command = c_string(command)?;
        let commands = [c_command.as_ptr()];
        let (mut answer, mut answer_len, mut status, mut status_len) = (null_mut(), 0, null_mut(), 0);
        // SAFETY: the handle is connected; there is one command, a C string; no input follows; the four outputs are written.
        let asked = unsafe {
            function(
                self.handle,
                commands.as_ptr(),
                1,
                null(),
                0,
                &mut answer,
                &mut answer_len,
                &mut status,
                &mut status_len,
            )
        };
        let [answer, status] = [(answer, answer_len), (status, status_len)].map(|(at, len)| {
            if at.is_null() {
                return Vec::new();
            }
            // SAFETY: the library allocated `len` bytes at `at`, which are given back once, after they were copied.
            unsafe {
                let bytes = std::slice::from_raw_parts(at.cast::<u8>(), len).to_vec();
                (self.libraries.rados_buffer_free)(at);
                bytes
            }
        });
        check(asked, || format!("the {whom} refuse {command}: {}", String::from_utf8_lossy(&status)))?;
        Ok(answer)
    }
}

type Command = unsafe extern "C" fn(
    Handle,
    *const *const std::ffi::c_char,
    usize,
    *const std::ffi::c_char,
    usize,
    *mut *mut std::ffi::c_char,
    *mut usize,
    *mut *mut std::ffi::c_char,
    *mut usize,
) -> i32;

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: images keep their cluster alive, so nothing uses the handle any more.
        unsafe { (self.libraries.rados_shutdown)(self.handle) }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}
