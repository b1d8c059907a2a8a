# reflash: the static binary of `make cross`, which needs neither this toolchain nor this C library.

REFLASH_VERSION = 0.1.0
REFLASH_LICENSE = MIT or Apache-2.0
REFLASH_TREE = $(BR2_EXTERNAL_REFLASH_PATH)/../../..

ifeq ($(BR2_x86_64),y)
REFLASH_TRIPLE = x86_64-unknown-linux-musl
else ifeq ($(BR2_aarch64),y)
REFLASH_TRIPLE = aarch64-unknown-linux-musl
else ifeq ($(BR2_ARM_CPU_ARMV7A),y)
REFLASH_TRIPLE = armv7-unknown-linux-musleabihf
else ifeq ($(BR2_ARM_CPU_ARMV6),y)
REFLASH_TRIPLE = arm-unknown-linux-musleabihf
else ifeq ($(BR2_RISCV_64),y)
REFLASH_TRIPLE = riscv64gc-unknown-linux-musl
endif

# make cross TARGET=$(REFLASH_TRIPLE) VARIANT=full comes before.
REFLASH_SITE = $(REFLASH_TREE)/target/cross/$(REFLASH_TRIPLE)/full
REFLASH_SITE_METHOD = local

define REFLASH_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/reflash $(TARGET_DIR)/usr/bin/reflash
	$(INSTALL) -D -m 0755 $(REFLASH_TREE)/cross/boot/reflash-boot $(TARGET_DIR)/usr/lib/reflash/reflash-boot
endef

define REFLASH_INSTALL_INIT_SYSTEMD
	$(INSTALL) -D -m 0644 $(REFLASH_TREE)/cross/boot/systemd/reflash.service \
		$(TARGET_DIR)/usr/lib/systemd/system/reflash.service
endef

define REFLASH_INSTALL_INIT_SYSV
	$(INSTALL) -d $(TARGET_DIR)/etc/init.d
	ln -sf /usr/lib/reflash/reflash-boot $(TARGET_DIR)/etc/init.d/S45reflash
endef

$(eval $(generic-package))
