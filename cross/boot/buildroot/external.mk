include $(sort $(wildcard $(BR2_EXTERNAL_REFLASH_PATH)/package/*/*.mk))
