/* A program may use volumes and host mode. */
#include "plimsoll.h"
#include "plimsoll-host.h"

int main(void) {
    plimsoll_busy volume = {0, -1, 0};
    plimsoll_host_busy file = {0, 0.5};
    return volume.confidence < 0 && file.confidence > 0.0 ? 0 : 1;
}
